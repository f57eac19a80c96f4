"""GEF: what must hold by theory, the four forms against slow rewrites, and mutants that must fail."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import veridical as vd
from tests.reference import gef as reference
from veridical.gef import GEF, FastGEF, find_path, gef_score
from veridical.gef.forms import least_squares_step
from veridical.metrics.base import CONSTANT
from veridical.testing import tiny_task


def linear_task(samples: int = 6, features: int = 8) -> vd.Task:
    generator = torch.Generator().manual_seed(0)
    net = nn.Linear(features, 2, dtype=torch.float64)
    with torch.no_grad():
        net.weight.copy_(torch.randn(2, features, generator=generator))
        net.bias.zero_()
    x = torch.randn(samples, features, generator=generator, dtype=torch.float64)
    return vd.Task(net, x)


def test_weights_of_a_linear_model_score_one_when_averaged_first() -> None:
    metric = FastGEF(normalise=False, mean_then_correlate=True, draws=500, path=(0.001, 1.0, 2.0))
    scores = vd.score(metric, linear_task(), "gradient")
    assert torch.allclose(scores.values, torch.ones(6, dtype=torch.float64))


def test_one_direction_makes_every_draw_exact() -> None:
    metric = FastGEF(normalise=False, same_direction=True, draws=7, path=(0.001, 0.3, 0.6, 1.0))
    scores = vd.score(metric, linear_task(), "gradient")
    assert torch.equal(scores.values, torch.ones(6, dtype=torch.float64))


def test_constant_map_scores_zero_and_is_flagged() -> None:
    scores = vd.score(FastGEF(path=(0.1, 0.5, 1.0)), linear_task(), "constant")
    assert torch.equal(scores.values, torch.zeros(6, dtype=torch.float64))
    assert scores.flagged == {CONSTANT: 6, "the explanation does not move": 6}


def test_a_map_that_moves_as_far_at_every_level_is_not_said_to_stand_still() -> None:
    scores = vd.score(FastGEF(path=(0.1, 0.5, 1.0)), vd.tasks.load("digits")[:16], "random_k")
    alike = scores.flags["the explanation moves as far at every level"]
    moved = scores.details["explanation_distortion"]
    assert bool(alike.any())
    assert float(moved.min()) > 1
    assert bool((moved[alike].amax(-1) - moved[alike].amin(-1)).amin(-1).lt(1e-9).all())
    assert "the explanation does not move" not in scores.flagged


def test_more_models_around_each_tell_more_of_the_jacobian() -> None:
    task = tiny_task("table", 4)
    metric = GEF(form="jacobian", draws=1, steps=2, path=(0.05, 0.1, 0.2))
    rows = [vd.score(replace(metric, output_draws=k), task, "gradient").cost.backward for k in (5, 6, 20)]
    # at least two around each step for each of three outputs
    assert rows == [4 * (1 + 3 * 2 * (1 + k)) for k in (6, 6, 20)]


@pytest.mark.parametrize(("form", "bias"), [("fast", 0.0), ("arc", 0.0), ("reference", 0.04)])
def test_random_maps_score_zero_on_average(form: str, bias: float) -> None:
    """But for the published form: its running mean of skewed products rises more often than it falls.

    Over twelve seeds random maps score 0.007, -0.002 and 0.040 there, each +- 0.005.
    """
    task = tiny_task("table", 250)
    scores = vd.score(
        reference.of_form(form, path=(0.1, 0.3, 0.6, 0.9, 1.2), output_draws=1, steps=2), task, "random"
    )
    assert abs(scores.mean() - bias) < 0.05


def test_score_agrees_with_the_slow_one() -> None:
    generator = torch.Generator().manual_seed(1)
    model = torch.rand(20, 4, 5, generator=generator, dtype=torch.float64)
    moved = (torch.rand(20, 4, 5, generator=generator, dtype=torch.float64) * 3).floor()
    moved[0] = 1.0
    model[1] = 2.0
    got = gef_score(model, moved)[0]
    np.testing.assert_allclose(got, reference.score(model.numpy(), moved.numpy()), atol=1e-12)


def test_cosine_and_euclidean_agree_on_normalised_maps() -> None:
    task = tiny_task("table")
    path = (0.1, 0.4, 0.7, 1.0)
    one = vd.score(FastGEF(path=path), task, "gradient")
    other = vd.score(FastGEF(path=path, distance="cosine"), task, "gradient")
    assert torch.allclose(one.values, other.values)
    assert not torch.allclose(one.details["explanation_distortion"], other.details["explanation_distortion"])


def _distortion(form: str, task: vd.Task, steps: int = 5, **settings: object) -> torch.Tensor:
    metric = reference.of_form(form, steps=steps, path=(0.05, 0.1, 0.2), draws=2, **settings)
    return vd.score(metric, task, "gradient").details["explanation_distortion"]


def test_arc_is_at_least_the_chord_and_grows_with_finer_steps() -> None:
    task = tiny_task("table")
    chord = _distortion("fast", task, normalise=False)
    coarse = _distortion("arc", task, 2, normalise=False)
    fine = _distortion("arc", task, 4, normalise=False)
    finest = _distortion("arc", task, 64, normalise=False)
    twice = _distortion("arc", task, 128, normalise=False)
    assert bool((coarse >= chord - 1e-12).all())
    assert bool((fine >= coarse - 1e-12).all())
    assert torch.allclose(finest, twice, rtol=1e-3)


def test_arc_equals_the_chord_where_the_map_is_affine_in_the_weights() -> None:
    task = linear_task()
    path, common = (0.1, 0.5, 1.0), {"normalise": False, "draws": 2}
    fast = vd.score(FastGEF(path=path, **common), task, "gradient")  # type: ignore[arg-type]
    arc = vd.score(GEF(form="arc", path=path, **common), task, "gradient")  # type: ignore[arg-type]
    assert torch.allclose(fast.details["explanation_distortion"], arc.details["explanation_distortion"])


def test_output_noise_is_drawn_only_where_outputs_are_read() -> None:
    task = tiny_task("table")
    metric = GEF(form="reference", steps=2, draws=1, output_draws=3, path=(0.05, 0.1, 0.2))
    quiet = vd.score(metric, task, "gradient").cost
    models = 3 * 2
    assert quiet.backward == len(task) * (1 + models)
    per_map = vd.explain("occlusion", tiny_task("table")).cost.forward
    loud = vd.score(metric, task, "occlusion").cost
    assert loud.forward == per_map * (1 + models * (1 + 3)) + 3 * len(task)


def asked_of(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A user's map that reads output values and declares nothing."""
    return inputs * model(inputs).gather(1, targets[:, None]).reshape(-1, *[1] * (inputs.dim() - 1))


def test_whether_outputs_are_read_is_found_out() -> None:
    """A function does not say so: it is tried."""
    task = tiny_task("table")
    metric = GEF(form="reference", steps=2, draws=1, output_draws=3, path=(0.05, 0.1, 0.2))
    few, many = (
        vd.score(replace(metric, output_draws=count), task, asked_of).cost.forward for count in (1, 3)
    )
    per_map = vd.explain(asked_of, tiny_task("table")).cost.forward
    assert many - few == 3 * 2 * 2 * per_map


def test_least_squares_step_agrees_with_the_slow_one() -> None:
    generator = torch.Generator().manual_seed(2)
    outputs = torch.randn(4, 7, 3, generator=generator, dtype=torch.float64)
    maps = torch.randn(4, 7, 10, generator=generator, dtype=torch.float64)
    step = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    length, fit, in_span = least_squares_step(outputs, maps, step)
    for i in range(4):
        expected = reference.jacobian_step(outputs[i].numpy(), maps[i].numpy(), step[i].numpy())
        assert float(length[i]) == pytest.approx(expected)
    assert torch.allclose(in_span, torch.ones(4, dtype=torch.float64))
    # noise maps are not explained by outputs; linear ones are, entirely
    exact = outputs @ torch.randn(4, 3, 10, generator=generator, dtype=torch.float64)
    assert bool((least_squares_step(outputs, exact, step)[1] > 1 - 1e-9).all())
    assert bool((fit < 0.5).all())


def test_path_of_a_model_that_never_reaches_chance_is_a_plateau() -> None:
    """A large bias-free margin keeps one class ahead whatever the noise, as a collapsed model does."""

    class Stubborn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.stack([x.sum(-1) * self.scale**2 + 1, -x.sum(-1) * self.scale**2 - 1], -1)

    path = find_path(vd.Task(Stubborn(), torch.rand(8, 3)), 5, draws=5)
    assert path.reason == "plateau"
    assert path.sigma_max == pytest.approx(10.2)


def test_the_published_rule_sees_enough_rows_to_meet_chance() -> None:
    """Of 32 rows no share lies within 0.01 of 1/12, so on few rows it would end at the last of 100 steps."""
    rows = torch.randn(300, 6, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 12))
    path = find_path(vd.Task(net, rows[:20], train=rows), rule="published")
    assert path.reason == "5 of 5 runs met chance"
    assert len(path.searched) == 5


@pytest.mark.parametrize(
    "levels", [[0.1, 0.2, 0.3], np.array([0.1, 0.2, 0.3]), torch.tensor([0.1, 0.2, 0.3])]
)
def test_a_path_may_be_any_row_of_numbers(levels: object) -> None:
    metric = FastGEF(path=levels)  # type: ignore[arg-type]
    assert metric.path == pytest.approx((0.1, 0.2, 0.3))
    assert FastGEF.from_json(metric.to_json()) == metric


def test_input_noise_moves_text_at_its_embeddings() -> None:
    scores = vd.score(FastGEF(perturb="input", path=(0.1, 0.5, 1.0)), tiny_task("text"), "gradient")
    assert bool(scores.values.isfinite().all())


def test_bad_settings_are_refused() -> None:
    for kind, form in ((GEF, "slow"), (GEF, "fast"), (FastGEF, "arc"), (FastGEF, "reference")):
        with pytest.raises(vd.errors.InputError, match="'fast' is that of FastGEF"):
            kind(form=form)  # type: ignore[arg-type]
    with pytest.raises(vd.errors.InputError, match="at least 2"):
        FastGEF(levels=1)
    for name in ("levels", "draws", "steps", "output_draws"):
        for value in (0, -1, 2.5, True):
            with pytest.raises(vd.errors.InputError, match=f"{name} is a whole number|at least 2"):
                FastGEF(**{name: value})  # type: ignore[arg-type]
    for noise in (-1.0, float("nan"), float("inf")):
        with pytest.raises(vd.errors.InputError, match="output_noise is a finite number from 0"):
            FastGEF(output_noise=noise)
    with pytest.raises(vd.errors.InputError, match="or one of 'fitted', 'published'"):
        FastGEF(path="isotonik")  # type: ignore[arg-type]
    for path in ((0.1, 0.3, 0.2), (0.1, 0.1, 0.2), (0.0, 0.1, 0.2), (0.1, 0.2, float("inf"))):
        with pytest.raises(vd.errors.InputError, match="positive and rising"):
            FastGEF(path=path)
    with pytest.raises(vd.errors.InputError, match="holds numbers"):
        FastGEF(path=("a", "b", "c"))  # type: ignore[arg-type]
    with pytest.raises(vd.errors.InputError, match="finished map"):
        vd.score("fast_gef", tiny_task("table"), torch.rand(9, 6))


def test_two_levels_give_one_or_minus_one() -> None:
    """Figure A.1 A begins at Z = 2."""
    scores = vd.score(FastGEF(levels=2, draws=3, path="published"), tiny_task("table", 16), "gradient")
    by_draw = scores.details["by_draw"]
    assert bool(((by_draw.abs() == 1) | (by_draw == 0)).all())
    assert bool(scores.values.isfinite().all())


def test_distance_and_correlation_may_be_functions() -> None:
    task = tiny_task("table", 6)
    settings = {"draws": 2, "path": (0.1, 0.4, 0.8)}

    def apart(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a - b).square().sum(-1).sqrt()

    def slope(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x, y = x - x.mean(-1, keepdim=True), y - y.mean(-1, keepdim=True)
        return (x * y).sum(-1) / (x.square().sum(-1) * y.square().sum(-1)).sqrt()

    ours = vd.score(FastGEF(correlation="pearson", **settings), task, "gradient")
    own = vd.score(FastGEF(distance=apart, correlation=slope, **settings), task, "gradient")
    assert torch.allclose(ours.values, own.values)
    known = torch.tensor([[[True, True, True]], [[True, False, True]]])
    x, y = torch.rand(2, 1, 3).double(), torch.rand(2, 1, 3).double()
    some = FastGEF(correlation=slope).correlate(x, y, known)
    assert float(some[0, 0]) == pytest.approx(float(slope(x[0], y[0])))
    assert abs(float(some[1, 0])) == pytest.approx(1.0)
    with pytest.raises(vd.errors.ShapeError, match="one number per sample"):
        vd.score(FastGEF(distance=lambda a, b: a - b, **settings), task, "gradient")


def test_quadrants_count_where_both_stay_or_move() -> None:
    task = tiny_task("table", 6)
    scores = vd.score(FastGEF(draws=2, path=(0.1, 0.4, 0.8)), task, "gradient")
    model, explanation = (scores.details[f"{w}_distortion"] for w in ("model", "explanation"))
    table = vd.gef.quadrants(scores, 0.2, 0.5)
    counted = {"tp": 0, "tn": 0, "fp": 0, "fn": 0}
    for n in range(6):
        for m in range(2):
            f, phi = float(model[n, m, 1]) > 0.2, float(explanation[n, m, 1]) > 0.5
            counted["tn" if f and phi else "fp" if f else "fn" if phi else "tp"] += 1
    assert {name: table.loc[1, name] * 12 for name in counted} == pytest.approx(counted)
    assert (table.aligned == table.tp + table.tn).all()
    assert (table.tp + table.tn + table.fp + table.fn).tolist() == pytest.approx([1.0] * 3)
    half = vd.gef.quadrants(scores)
    assert float((half.tp + half.fn).mean()) == pytest.approx(0.5, abs=0.1)
    with pytest.raises(vd.errors.InputError, match="not of GEF"):
        vd.gef.quadrants(vd.score("sparseness", task, "gradient"))
