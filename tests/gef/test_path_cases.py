"""The noise path on awkward models and sets, and GEF's score on them."""

import copy
import math
import warnings

import pytest
import torch
from scipy.stats import spearmanr
from sklearn.metrics import cohen_kappa_score
from torch import nn

import veridical as vd
from veridical.gef import FastGEF, IsoSigma, NoisePath, find_path, gef_score
from veridical.gef.noise_path import LEFT, MAX_SAMPLES, STRONGEST, WEAKEST, agreement, calibration_rows
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
    path = find_path(vd.Task(mlp(classes), rows(samples)), 5, draws=60)
    assert path.reason in ("chance", "plateau")
    assert (len(path.levels), path.levels[0], path.levels[-1]) == (5, 1e-3, pytest.approx(path.sigma_max))
    assert WEAKEST <= path.sigma_max <= STRONGEST
    assert path.interval[0] <= path.sigma_max <= path.interval[1]
    assert path.rows == min(samples, MAX_SAMPLES) * sum(path.draws)
    assert sum(path.draws) <= 60
    assert "rows evaluated" in str(path)


# --- agreement ------------------------------------------------------------------------


def test_agreement_of_classes_is_kappa() -> None:
    task = vd.Task(mlp(3), rows(40))
    outputs = task.outputs + torch.randn(40, 3, generator=torch.Generator().manual_seed(2)).double()
    assert agreement(task, task.outputs) == 1.0
    expected = cohen_kappa_score(task.predictions.numpy(), outputs.argmax(1).numpy())
    assert agreement(task, outputs) == pytest.approx(expected, abs=1e-7)


def test_a_model_that_collapses_onto_one_class_keeps_nothing() -> None:
    """As many predictions as that class has are kept, which is chance and not knowledge."""
    task = vd.Task(mlp(3), rows(40))
    one = torch.zeros(40, 3).double()
    one[:, int(task.predictions.mode().values)] = 1.0
    assert agreement(task, one) == pytest.approx(0.0, abs=1e-7)


def test_agreement_of_a_single_prediction_is_beyond_one_in_c() -> None:
    task = vd.Task(mlp(4), rows(1))
    assert agreement(task, task.outputs) == 1.0
    assert agreement(task, -task.outputs) == pytest.approx(-1 / 3)


def test_agreement_of_a_regression_does_not_follow_its_scale() -> None:
    task = vd.Task(mlp(2), rows(30), head="regression", targets=[1] * 30)
    outputs = task.outputs + torch.randn(30, 2, generator=torch.Generator().manual_seed(2)).double()
    assert agreement(task, 7.0 * task.outputs - 3.0) == pytest.approx(1.0)
    each = [spearmanr(task.outputs[:, k].numpy(), outputs[:, k].numpy()).statistic for k in range(2)]
    assert agreement(task, outputs) == pytest.approx(sum(each) / 2)
    assert agreement(task, torch.ones(30, 2).double()) == 0.0


def test_an_output_that_never_moves_says_nothing_of_agreement() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp(1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([self.inner(x), torch.ones_like(x[:, :1])], 1)

    task = vd.Task(Half(), rows(20), head="regression", targets=[0] * 20)
    assert agreement(task, task.outputs) == pytest.approx(1.0)


def test_several_labels_agree_one_by_one() -> None:
    task = vd.Task(mlp(4), rows(12), head="multilabel")
    clean, other = task.outputs > 0, task.outputs.roll(1, 0) > 0
    expected = cohen_kappa_score(clean.flatten().numpy(), other.flatten().numpy())
    assert agreement(task, task.outputs) == 1.0
    assert agreement(task, task.outputs.roll(1, 0)) == pytest.approx(expected, abs=1e-7)


def test_answers_that_are_not_finite_agree_with_nothing() -> None:
    task = vd.Task(mlp(3), rows(4))
    for bad in (torch.nan, torch.inf):
        broken = task.outputs.clone()
        broken[0] = bad
        assert math.isnan(agreement(task, broken))


# --- where a path ends ----------------------------------------------------------------


def kept_by_deep_copies(task: vd.Task, sigma: float, count: int = 120) -> tuple[torch.Tensor, torch.Tensor]:
    """The agreement of deep copies, each with noise of its own, and that of the first output alone."""
    few = calibration_rows(task)
    generator = torch.Generator().manual_seed(11)
    kept, first = [], []
    for _ in range(count):
        noisy = copy.deepcopy(few.predictor.source.module)
        with torch.no_grad():
            for value in noisy.parameters():
                drawn = torch.randn(value.shape, generator=generator, dtype=torch.float64).to(value.dtype)
                value.mul_(1 + sigma * drawn)
            outputs = noisy(few.inputs)
        clean = few.outputs
        if task.head == "regression":
            pairs = zip(clean.T.numpy(), outputs.T.numpy(), strict=True)
            each = [float(spearmanr(a, b).statistic) for a, b in pairs]
            kept.append(sum(each) / len(each))
            first.append(each[0])
        else:
            kept.append(cohen_kappa_score(clean.argmax(1).numpy(), outputs.argmax(1).numpy()))
            first.append(kept[-1])
    return torch.tensor(kept), torch.tensor(first)


@pytest.mark.parametrize("name", ["digits", "wine", "diabetes", "neuron"])
def test_a_tenth_is_left_where_a_path_ends_and_chance_is_within_reach(name: str) -> None:
    task = vd.tasks.load("digits" if name == "neuron" else name)
    # a unit of the head gives the network's own logit, so deep copies of the network serve for it as well
    task = vd.gef.at_neuron(task, "head", 0) if name == "neuron" else task
    path = find_path(task)
    assert path.reason == "chance"
    kept, first = kept_by_deep_copies(task, path.sigma_max)
    error = float(kept.std()) / len(kept) ** 0.5
    # the slack is what an end that is off by its own standard error of 8% leaves
    assert abs(float(kept.mean()) - LEFT) < 3 * error + 0.03
    low, high = first.quantile(torch.tensor([0.025, 0.975], dtype=first.dtype)).tolist()
    assert low <= 0 <= high


@pytest.mark.parametrize(
    "name", ["breast_cancer", "wine", "digits", pytest.param("basic_motions_cnn", marks=pytest.mark.extras)]
)
def test_two_seeds_find_the_same_path(name: str) -> None:
    """All pairs of twenty seeds: replications/gef, `python -m replications.gef.path`."""
    task = vd.tasks.load(name)
    ends = [find_path(task, key=vd.core.Key(seed)).sigma_max for seed in (0, 1, 2)]
    assert max(ends) / min(ends) < 1.5


def test_a_part_of_a_task_has_the_path_and_the_scores_of_the_whole() -> None:
    task = vd.tasks.load("wine")
    whole, part = (vd.score("fast_gef", t, "gradient", draws=2) for t in (task, task[:7].changed()))
    assert part.provenance["path"]["sigma_max"] == whole.provenance["path"]["sigma_max"]
    assert torch.equal(part.values, whole.values[:7])
    assert len(calibration_rows(task[:7])) == MAX_SAMPLES


def test_without_reference_rows_the_path_of_a_set_is_shown_beside_its_scores() -> None:
    task = vd.Task(mlp(3), rows(100))
    scores = vd.score(FastGEF(draws=1), task, "gradient")
    path = scores.provenance["path"]
    again = vd.score(FastGEF(draws=1, path=tuple(path["levels"])), task[:5].changed(), "gradient")
    assert torch.equal(again.values, scores.values[:5])
    assert path["rows"] == MAX_SAMPLES * sum(path["draws"])


def test_each_draw_has_a_path_of_its_own_around_that_of_all() -> None:
    path = find_path(vd.tasks.load("wine"))
    ends = [path.of_draw(draw, 5)[-1] for draw in range(5)]
    assert len(set(ends)) == 5
    assert sum(map(math.log, ends)) / 5 == pytest.approx(math.log(path.sigma_max))
    low, high = path.interval
    error = (math.log(high) - math.log(low)) / 3.92
    # the ends of five parts scatter as five searches of a fifth would
    assert torch.tensor(ends).log().std() / 5**0.5 == pytest.approx(error, rel=1.0)
    assert path.of_draw(0, 1) == path.levels
    assert NoisePath.given((0.1, 0.2)).of_draw(3, 5) == (0.1, 0.2)


def test_draws_at_one_level_of_iso_sigma_share_their_noise() -> None:
    task = vd.tasks.load("wine")[:8]
    metric = IsoSigma(draws=5)
    path = metric.noise_path(task)
    assert all(metric._levels(path, draw) == path.levels for draw in range(5))


def test_an_interval_holds_what_other_draws_would_have_given() -> None:
    task = vd.tasks.load("wine")[:12]
    scores = vd.score("fast_gef", task, "gradient")
    by_draw = scores.details["by_draw"]
    assert torch.allclose(by_draw.nanmean(1), scores.values)
    alone = dict(scores.details)
    del alone["by_draw"]
    low, high = vd.values.Scores(scores.values, scores.direction, "x", scores.ids, details=alone).ci()
    reach = 2.776 * float(by_draw.mean(0).std()) / 5**0.5
    centre = scores.mean()
    expected = (centre - math.hypot(centre - low, reach), centre + math.hypot(high - centre, reach))
    assert scores.ci() == pytest.approx(expected, rel=1e-2)


def test_overflow_ends_a_path_before_it() -> None:
    class Power(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp(3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.inner(x)
            return torch.where(out.abs().amax() > 3, torch.inf, out)

    path = find_path(vd.Task(Power(), rows(20)), draws=60)
    assert path.reason == "answers beyond are not finite"
    assert path.sigma_max < STRONGEST
    assert path.searched[-1] <= path.sigma_max * 1.0001


def test_a_regression_that_gives_one_output_has_no_path() -> None:
    with pytest.raises(vd.errors.InputError, match="the same output for all 1 rows"):
        find_path(vd.Task(mlp(1), rows(1), head="regression"))


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
