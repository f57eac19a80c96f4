"""The noise path on awkward models and sets, and GEF's score on them."""

import warnings

import pytest
import torch
from scipy.optimize import isotonic_regression
from torch import nn

import veridical as vd
from veridical.gef import FastGEF, find_path, gef_score
from veridical.gef.noise_path import GRID, agreement, agreements
from veridical.gef.perturbed_model import PerturbedModels
from veridical.testing import tiny_task


def seeded(net: nn.Module, seed: int = 0) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in net.parameters():
            value.copy_(torch.randn(value.shape, generator=generator) / max(1, value[0].numel()) ** 0.5)
    return net.double().eval()


def rows(count: int, width: int = 6) -> torch.Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def mlp(classes: int) -> nn.Module:
    return seeded(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, classes)))


@pytest.mark.parametrize(("classes", "samples"), [(2, 8), (2, 64), (1000, 32)])
def test_any_number_of_classes_and_samples_gives_a_sensible_path(classes: int, samples: int) -> None:
    path = find_path(vd.Task(mlp(classes), rows(samples)), 5, draws=10)
    assert path.reason in ("chance", "plateau")
    assert GRID[0] <= path.sigma_max <= GRID[-1]
    assert path.interval[0] <= path.sigma_max <= path.interval[1]
    assert path.chance == pytest.approx(1 / classes)
    assert path.rows == samples * sum(path.draws)
    assert max(path.draws) == 10
    assert "rows asked" in str(path)


def test_several_labels_agree_one_by_one() -> None:
    task = vd.Task(mlp(4), rows(12), head="multilabel")
    assert float(agreement(task, task.outputs)) == 1.0
    assert float(agreement(task, -task.outputs)) == 0.0
    assert find_path(task, 3, draws=5).chance == 0.5


def test_answers_that_are_not_finite_agree_with_nothing() -> None:
    task = vd.Task(mlp(3), rows(4))
    for bad in (torch.nan, torch.inf):
        broken = task.outputs.clone()
        broken[0] = bad
        assert bool(agreement(task, broken).isnan())


def test_bisection_ends_where_asking_every_level_would() -> None:
    task = vd.tasks.load("digits")[:48]
    path = find_path(task, 5)
    key = vd.core.Key(0) / "path"
    means = [agreements(task, PerturbedModels(task), GRID[i], range(20), key / i).mean() for i in range(40)]
    falling = isotonic_regression(torch.stack(means).numpy(), increasing=False).x
    whole = GRID[int((falling <= 0.11).argmax())]
    assert abs(path.sigma_max - whole) <= 0.25 * whole
    assert len(path.searched) < 9


def test_the_search_asks_at_most_four_times_the_rows_of_a_fast_gef() -> None:
    task = vd.tasks.load("digits")[:64]
    rows = [find_path(task, 5, key=vd.core.Key(seed)).rows for seed in range(3)]
    fast = vd.score(FastGEF(path=(0.1, 0.2, 0.3, 0.4, 0.5)), task, "gradient").cost.forward
    assert sum(rows) / 3 <= 4 * fast


def test_a_score_counts_the_path_it_rests_on_whoever_searched_it() -> None:
    task = tiny_task("table")
    first, second = (vd.score(FastGEF(draws=1), task, "gradient") for _ in range(2))
    rows = first.provenance["path"]["rows"]
    given = vd.score(FastGEF(draws=1, path=tuple(first.provenance["path"]["levels"])), task, "gradient")
    assert rows > 0
    assert first.cost == second.cost
    assert first.cost.forward == given.cost.forward + rows
    together = FastGEF(draws=1).score_all(task, {"a": vd.api.as_explainer("gradient")})
    assert together["a"].cost == given.cost  # type: ignore[union-attr]


def test_the_path_is_searched_once_for_all_explainers() -> None:
    task = tiny_task("table")
    metric = FastGEF(draws=1, levels=3)
    first = metric.noise_path(task)
    meter = task.predictor.meter.cost
    assert metric.noise_path(task) is first
    assert metric.noise_path(task[:4]) is first
    assert task.predictor.meter.cost == meter


def test_levels_without_an_explanation_are_passed_over() -> None:
    model = torch.tensor([[[1.0, 2.0, 3.0, 4.0]]])
    moved = torch.tensor([[[1.0, torch.nan, 2.0, 3.0]]])
    assert float(gef_score(model, moved)[0]) == pytest.approx(1.0)
    lost = torch.tensor([[[1.0, torch.nan, torch.nan, 3.0]]])
    assert bool(gef_score(model, lost)[0].isnan())


def test_a_missing_map_is_nan_and_flagged() -> None:
    def breaks_down(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        maps = inputs * model(inputs).sum(1, keepdim=True).detach()
        maps[0] = torch.nan
        return maps

    task = tiny_task("table", 4)
    scores = vd.score(FastGEF(draws=1, path=(0.1, 0.3, 0.6)), task, breaks_down)
    assert bool(scores.values[0].isnan())
    assert scores.flagged["no explanation"] == 1
    assert bool(scores.values[1:].isfinite().all())


def test_small_maps_that_are_not_normalised_still_move() -> None:
    """What counts as zero is relative to the map: gradients of 1e-9 are gradients."""
    task = tiny_task("table")

    def slope(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = inputs.clone().requires_grad_(True)
        with torch.enable_grad():
            model(x).gather(1, targets[:, None]).sum().backward()
        assert x.grad is not None
        return 1e-9 * x.grad

    metric = FastGEF(normalise=False, draws=2, path=(0.1, 0.4, 0.8))
    large, small = vd.score(metric, task, "gradient"), vd.score(metric, task, slope)
    assert not small.flagged
    assert torch.allclose(large.values, small.values)


def test_input_noise_needs_no_weights() -> None:
    from sklearn.linear_model import LogisticRegression

    x = rows(60).numpy()
    model = LogisticRegression().fit(x, x[:, 0] > 0)
    task = vd.Task(model, x[:8].astype("float32"), train=x.astype("float32"))
    metric = FastGEF(perturb="input", draws=2, path=(0.1, 0.5, 1.0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert metric.inapplicable_reason(task) is None
        scores = vd.score(metric, task, "occlusion")
    assert len(scores) == 8
    assert FastGEF().inapplicable_reason(task) is not None
