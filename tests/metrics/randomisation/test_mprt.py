"""MPRT, smooth MPRT and efficient MPRT: copied models by hand, what is left out, counts."""

import pytest
import torch
from torch import nn

import veridical as vd
from tests.reference import metrics as slow
from tests.reference.metric_cases import image_task, linear_task, mlp_task, one_gradient
from veridical.core.key import Key
from veridical.explainers import Gradient
from veridical.explainers.input_noise import gaussian_draws
from veridical.metrics import EfficientMprt, Mprt, SmoothMprt
from veridical.models.predictor import Plan
from veridical.models.randomised_layers import randomised

LAYERS = ["0", "2", "4"]
ORDERS = ["top_down", "bottom_up", "independent"]


def worlds(task: vd.Task, metric, order: str) -> list[nn.Module]:
    """Copies of the model with the very weights that the metric draws."""
    key = Key(0) / metric.name / "weights" / 0
    steps = slow.walk(LAYERS, order)
    return [slow.with_parameters(task.model, randomised(task.model, s, key)) for s in steps]


def similarities(task: vd.Task, metric, order: str, shift=None) -> torch.Tensor:
    """Spearman of the clean gradient with that of every copy (N, layers), inputs noised by `shift`."""
    noises = shift or [torch.zeros_like(task.inputs)]
    table = []
    for i, target in enumerate(task.targets.tolist()):
        rows = [task.inputs[i] + n[i] for n in noises]
        clean = sum(one_gradient(task, x, target) for x in rows)
        table.append(
            [
                slow.spearman(clean.tolist(), sum(one_gradient(task, x, target, m) for x in rows).tolist())
                for m in worlds(task, metric, order)
            ]
        )
    return torch.tensor(table, dtype=torch.float64)


@pytest.mark.parametrize("order", ORDERS)
def test_agrees_with_copied_models_by_hand(order: str) -> None:
    task, metric = mlp_task(columns=9), Mprt(order=order)
    scores = vd.score(metric, task, "gradient")
    by_hand = similarities(task, metric, order)
    assert scores.curve is not None
    torch.testing.assert_close(scores.curve.y, by_hand, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(scores.values, by_hand.mean(-1), rtol=1e-9, atol=1e-12)
    last = vd.score("mprt", task, "gradient", order=order, aggregate="last").values
    torch.testing.assert_close(last, by_hand[:, -1], rtol=1e-9, atol=1e-12)


def test_the_unrandomised_model_is_not_in_the_average() -> None:
    task, metric = mlp_task(columns=9), Mprt()
    by_hand = similarities(task, metric, "top_down")
    scores = vd.score(metric, task, "gradient")
    assert scores.curve is not None
    assert scores.curve.y.shape == (6, len(LAYERS))
    with_itself = torch.cat([torch.ones(6, 1, dtype=torch.float64), by_hand], 1).mean(-1)
    assert ((scores.values - with_itself).abs() > 1e-3).all()  # the common fault would be noticed


def test_orders_differ_and_end_alike() -> None:
    task = mlp_task(columns=9)
    curves = {o: vd.score("mprt", task, "gradient", order=o).curve.y for o in ORDERS}
    assert not torch.allclose(curves["top_down"][:, 0], curves["bottom_up"][:, 0])
    torch.testing.assert_close(curves["top_down"][:, -1], curves["bottom_up"][:, -1])
    torch.testing.assert_close(curves["independent"][:, -1], curves["top_down"][:, 0])


def test_a_map_that_ignores_the_model_is_found_out() -> None:
    def brightness(model, inputs, targets):
        return inputs

    for name in ("mprt", "smooth_mprt"):
        settings = {"noise_draws": 2} if name == "smooth_mprt" else {}
        assert (vd.score(name, mlp_task(), brightness, **settings).values == 1.0).all()
        assert vd.score(name, mlp_task(), "gradient", **settings).direction == "lower"
    assert (vd.score("efficient_mprt", mlp_task(), brightness).values == 0.0).all()


def test_pearson_and_absolute_values_by_hand() -> None:
    task = linear_task(columns=7)
    fresh = randomised(task.model, [""], Key(0) / "mprt" / "weights" / 0)["weight"]
    clean = task.model.weight.detach()
    expected = [slow.pearson(clean[t].abs().tolist(), fresh[t].abs().tolist()) for t in task.targets.tolist()]
    got = vd.score("mprt", task, "gradient", similarity="pearson", absolute=True).values
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-12)


def test_ssim_compares_images() -> None:
    for absolute in (False, True):
        values = vd.score("mprt", image_task(), "gradient", similarity="ssim", absolute=absolute).values
        assert ((values >= -1) & (values < 1)).all()
    with pytest.raises(vd.errors.NotApplicableError, match="ssim"):
        vd.score("mprt", mlp_task(), "gradient", similarity="ssim")


def test_smooth_agrees_with_averages_by_hand_and_notices_too_little_noise() -> None:
    task, metric = mlp_task(columns=9), SmoothMprt(noise_draws=3)
    span = task.inputs.amax(1, keepdim=True) - task.inputs.amin(1, keepdim=True)
    key = Key(0) / metric.name / "shared"

    def assert_by_hand(level: float) -> None:
        noises = [level * span * noise for noise in gaussian_draws(task, key, range(3))]
        by_hand = similarities(task, metric, "bottom_up", noises)
        torch.testing.assert_close(metric(task, Gradient()).values, by_hand.mean(-1))

    assert_by_hand(0.1)
    with pytest.raises(AssertionError):
        assert_by_hand(0.4)


def test_smooth_without_noise_is_mprt() -> None:
    task = mlp_task(columns=9)
    metric = SmoothMprt(noise_level=0.0, noise_draws=2, order="independent")
    got = vd.score(metric, task, "gradient").values
    torch.testing.assert_close(got, similarities(task, metric, "independent").mean(-1))


def test_efficient_agrees_by_hand_and_notices_a_swapped_ratio() -> None:
    task, metric = mlp_task(columns=30), EfficientMprt(bins=8)
    key = Key(0) / metric.name / "weights" / 0
    twin = slow.with_parameters(task.model, randomised(task.model, LAYERS, key))
    rise, swapped = [], []
    for i, target in enumerate(task.targets.tolist()):
        before, after = (
            slow.histogram_entropy(one_gradient(task, task.inputs[i], target, m).tolist(), 8)
            for m in (task.model, twin)
        )
        rise.append((after - before) / before)
        swapped.append((after - before) / after)
    scores = vd.score(metric, task, "gradient")
    assert scores.values.tolist() == pytest.approx(rise)
    assert scores.values.tolist() != pytest.approx(swapped)
    assert scores.direction == "higher"


def test_counts() -> None:
    task, layers = mlp_task(rows=6), 3
    for name, settings, calls in (
        ("mprt", {}, 1 + layers),
        ("mprt", {"draws": 2}, 1 + 2 * layers),
        ("smooth_mprt", {"noise_draws": 4}, 4 * (1 + layers)),
        ("efficient_mprt", {}, 2),
        ("efficient_mprt", {"draws": 3}, 4),
    ):
        cost = vd.score(name, task, "gradient", **settings).cost
        assert (cost.forward, cost.backward) == (calls * 6, calls * 6)


@pytest.mark.parametrize("name", ["mprt", "smooth_mprt", "efficient_mprt"])
def test_models_under_noise_are_randomised_too(name: str) -> None:
    settings = {"noise_draws": 2} if name == "smooth_mprt" else {}
    clean = mlp_task(columns=9)
    noisy = clean.with_noise(0.5, Key(3))
    a, b = (vd.score(name, t, "gradient", **settings).values for t in (clean, noisy))
    assert not torch.allclose(a, b)


def test_maps_without_spread_are_flagged_and_models_without_weights_refused() -> None:
    def even(model, inputs, targets):
        return torch.ones_like(inputs)

    scores = vd.score("mprt", mlp_task(), even)
    assert scores.values.isnan().all()
    assert scores.flags["no layer has a similarity: a map has no spread"].all()
    rise = vd.score("efficient_mprt", mlp_task(), even)
    assert rise.values.isnan().all()
    assert rise.flags["the map is constant: it has no complexity to rise from"].all()
    with pytest.raises(vd.errors.NotApplicableError, match="weights"):
        vd.score("mprt", vd.Task(lambda x: x @ torch.ones(5, 3), torch.rand(2, 5)), "gradient")


def test_a_layer_that_dies_is_left_out_of_the_mean() -> None:
    calls = []

    def dead_at_the_second_layer(model, inputs, targets):
        calls.append(1)
        return torch.zeros_like(inputs) if len(calls) == 3 else inputs

    scores = vd.score("mprt", mlp_task(plan=Plan(rows=64)), dead_at_the_second_layer)
    assert (scores.values == 1.0).all()
    assert scores.flags["some layers left out: a map has no spread"].all()
    assert scores.curve is not None
    assert scores.curve.y.isnan().any(0).tolist() == [False, True, False]
