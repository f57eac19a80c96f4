"""meta_evaluate: known vectors, the cheat, shared work and its counts, every kind of input and metric."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

import veridical as vd
from tests.meta.conftest import small_table
from veridical.core.key import Key
from veridical.errors import InputError, NotApplicableError, UnknownNameError, VeridicalWarning
from veridical.explainers import as_explainer
from veridical.meta import Different, PredictionHolds, Same, meta_evaluate
from veridical.meta.consistency import MIN_SAMPLES, consistencies
from veridical.meta.dependence import BLIND, permuted
from veridical.meta.perturbations import Amount, Perturbation, perturbed
from veridical.meta.scoring import recalled
from veridical.metrics import FaithfulnessCorrelation, MaxSensitivity, Metric, Outcome, PixelFlipping

METHODS = ["gradient", "input_x_gradient", "occlusion"]
QUICK = {"draws": 2, "iterations": 2, "resamples": 20, "ar": {"ipt": 1.0, "mpt": 2.0}}


def quick(task, metrics, methods=METHODS, **options):
    return meta_evaluate(task, metrics, methods, **{**QUICK, **options})


@pytest.fixture(scope="module")
def sane(table):
    return quick(table, [Same(), Different(), PredictionHolds(), "sparseness", "pixel_flipping"])


@pytest.mark.parametrize("test", ["ipt", "mpt", "mean"])
def test_sanity_estimators_have_their_vectors(sane, test):
    def check(metric, expected, within):
        vector = sane[metric, test].vector
        assert torch.allclose(vector, torch.tensor(expected, dtype=torch.float64), atol=within), vector

    check("same", [1.0, 0.0, 1.0, 0.0], 1e-12)
    check("different", [0.0, 1.0, 1 / 3, 0.0], 0.12)
    check("prediction_holds", [1.0, 1.0, 1.0, 1.0], 1e-2)
    with pytest.raises(AssertionError):
        check("different", [1.0, 0.0, 1.0, 0.0], 0.12)
    with pytest.raises(AssertionError):
        check("sparseness", [1.0, 0.0, 1.0, 0.0], 0.12)


def test_the_cheat_reaches_mc_1_and_no_mc_stands_alone(sane):
    assert sane.mc("prediction_holds") > 0.99
    frame = sane.to_frame().set_index(["metric", "test"])
    assert BLIND in frame.loc[("prediction_holds", "mean"), "flags"]
    assert frame.loc[("pixel_flipping", "mean"), "dependence"] > 0.8
    assert frame["dependence"].notna().all()


def test_permuted_maps_keep_their_values_and_padding():
    valid = torch.tensor([[True] * 6, [True, True, False, True, True, False]])
    maps = torch.rand(2, 6, dtype=torch.float64).masked_fill(~valid, 0.0)
    dealt = permuted(maps, valid, Key(1))
    assert torch.equal(dealt.sort(-1).values, maps.sort(-1).values)
    assert bool((dealt[~valid] == 0).all())
    assert not torch.equal(dealt, maps)
    assert torch.equal(permuted(maps[1:], valid[1:], Key(1)), dealt[1:])
    assert torch.equal(permuted(maps, None, Key(1)).sort(-1).values, maps.sort(-1).values)


def test_explanations_are_shared_and_those_of_metrics_cost_apart(table):
    perturbations = 2 * 2 * 1 * 2
    options = {"resamples": 0, "iterations": 1}
    few = quick(table, ["sparseness"], **options)
    others = ["complexity", "pixel_flipping", MaxSensitivity(draws=3), "random_logit"]
    many = quick(table, ["sparseness", *others], **options)
    for result in (few, many):
        assert result.explanations == (1 + perturbations) * len(METHODS)
    assert few.explanation_cost == many.explanation_cost
    # a metric that explains again pays for that itself
    assert many.scores["complexity"].cost.forward == 0 < many.scores["max_sensitivity"].cost.backward
    assert f"explanations: {few.explanations}, each for all metrics" in repr(many)
    assert few["sparseness", "mpt"].vector.tolist() == many["sparseness", "mpt"].vector.tolist()


@dataclass(frozen=True)
class Spy(Metric):
    """Records what it is given; scores the mean of the map."""

    name: ClassVar[str] = "spy"
    category: ClassVar[str] = "own"
    seen: ClassVar[list] = []

    def evaluate(self, task, explanation, context):
        self.seen.append((task, explanation))
        return Outcome(explanation.values.double().mean(-1))


@dataclass(frozen=True)
class Gappy(Metric):
    """No score at all in a disrupted task."""

    name: ClassVar[str] = "gappy"

    def evaluate(self, task, explanation, context):
        return Outcome(
            torch.full(
                (len(task),), 1.0 if "nr" in context.key.path or "ar" not in context.key.path else torch.nan
            )
        )


def test_explanations_are_for_the_unperturbed_prediction_under_the_perturbed_model(table):
    Spy.seen.clear()
    result = quick(table, [Spy()], resamples=0)
    changed = 0
    for task, explanation in Spy.seen:
        here = torch.searchsorted(table.ids, task.ids)
        assert torch.equal(explanation.targets, table.predictions[here])
        changed += int((task.predictions != table.predictions[here]).sum())
    assert changed > 50
    # the result is the statistic of exactly these scores, in the order of the plan
    kept = result.kept["mpt", "ar"]
    table = result.scores["spy"]
    again = consistencies(
        table.unperturbed["mpt"],
        table.perturbed["mpt", "nr"],
        table.perturbed["mpt", "ar"],
        result.kept["mpt", "nr"],
        kept,
        table.direction,
    )
    assert torch.equal(again.vector, result["spy", "mpt"].vectors)
    assert 0 < result["spy", "mpt"].kept[1] == pytest.approx(float(kept.double().mean()))


def test_the_same_seed_gives_the_same_and_another_another():
    metric, names = {"fc": FaithfulnessCorrelation(runs=4)}, ["gradient", "saliency"]
    first, again, other = (
        quick(small_table(), metric, names, seed=seed, resamples=0)["fc", "mpt"].vectors for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_metrics_draw_anew_under_every_perturbation_unless_fixed(table):
    metric = {"fc": FaithfulnessCorrelation(runs=5)}
    options = {"tests": ("mpt",), "nr": 1e-12, "resamples": 0}
    fresh, fixed = quick(table, metric, **options), quick(table, metric, same_draws=True, **options)
    assert float(fixed["fc", "mpt"].vector[2]) > 0.95
    assert float(fresh["fc", "mpt"].vector[2]) < 0.8
    with pytest.raises(UnknownNameError, match="fc"):
        quick(table, metric, same_draws=["f"])


def test_published_keeps_old_maps_in_ipt_and_counts_larger_whatever_the_direction(table):
    result = quick(table, ["sparseness", "pixel_flipping"], published=True, ar=None, resamples=0)
    assert result["sparseness", "ipt"].vector.tolist() == [1.0, 0.0, 1.0, 0.0]
    assert result.mc("sparseness", "ipt") == 0.5
    assert result["sparseness", "mpt"].vector.tolist() != [1.0, 0.0, 1.0, 0.0]
    assert result.amounts["ipt", "ar"].inputs == 5.0
    assert result.amounts["mpt", "ar"].weights == 2.0
    # deterministic maps are kept, so IPT costs no explanation at all
    assert result.explanations == (1 + 2 * 2 * 2) * len(METHODS)
    scores = result.scores["pixel_flipping"]
    base, far = scores.unperturbed["mpt"], scores.perturbed["mpt", "ar"]
    kept = result.kept["mpt", "ar"].unsqueeze(-2)
    larger = ((far > base) & kept).sum((-2, -1)) / (kept.sum((-2, -1)) * len(METHODS))
    assert torch.allclose(result["pixel_flipping", "mpt"].vectors[:, 3], larger.double().mean(-1))


def test_published_with_one_redrawing_explainer_shifts_the_half():
    task = small_table(60)
    methods = ["gradient", "occlusion", "saliency", "random"]
    result = quick(task, ["sparseness"], methods, published=True, tests=("ipt",), draws=6, resamples=0)
    iac_nr, iac_ar, _, iec_ar = result["sparseness", "ipt"].vector.tolist()
    assert iac_nr == pytest.approx((4 - 0.5) / 4, abs=0.07)
    assert iac_ar == pytest.approx(0.5 / 4, abs=0.07)
    assert iec_ar == pytest.approx(1 / 8, abs=0.04)


def test_published_gives_re_explaining_metrics_the_old_map_and_nothing_else(table):
    explainer = as_explainer("gradient")
    kept, changed = explainer(table), perturbed(table, Amount(inputs=1.0), Key(0))
    old = recalled(explainer, kept, changed)
    assert old.name == "gradient"
    assert old.to_json() == explainer.to_json()
    assert old(changed) is kept
    assert not torch.equal(kept.values, explainer(changed).values)
    others = (
        changed.with_inputs(changed.inputs + 0.1),
        changed.with_targets((changed.targets + 1) % 3),
        changed.with_noise(0.5, Key(1)),
    )
    for other in others:
        assert torch.equal(old(other).values, explainer(other).values)
    # of one neighbour each: the largest of several hides how far away the old map is
    metric = MaxSensitivity(draws=1, relative_to="nothing")
    result = quick(table, [metric], ["gradient", "saliency"], published=True, tests=("ipt",), resamples=0)
    near, far = (result.scores["max_sensitivity"].perturbed["ipt", mode] for mode in ("nr", "ar"))
    honest = quick(table, [metric], ["gradient", "saliency"], tests=("ipt",), resamples=0)
    assert float(far[..., 0, :].mean()) > 2 * float(near[..., 0, :].mean())
    made = honest.scores["max_sensitivity"].perturbed["ipt", "ar"][..., 0, :]
    assert 2 * float(made.nanmean()) < float(far[..., 0, :].mean())


@pytest.mark.parametrize("modality", ["text", "series"])
def test_other_inputs_and_the_combined_test(modality, request):
    task = request.getfixturevalue(modality)
    options = {"tests": ("ipt", "mpt", "combined"), "ar": {"ipt": 3.0, "mpt": 3.0}, "draws": 1}
    result = quick(task, ["sparseness", "pixel_flipping"], ["gradient", "occlusion"], **options)
    bases = 2 if modality == "text" else 1
    told = sum(int((kept.sum(-1) >= MIN_SAMPLES).sum()) for kept in result.kept.values())
    assert result.explanations == (bases + told) * 2
    for test in ("ipt", "mpt", "combined"):
        assert 0 <= float(result["pixel_flipping", test].vector[0]) <= 1
    two = [result["pixel_flipping", t].vector for t in ("ipt", "mpt")]
    mean = result["pixel_flipping", "mean"].vector
    assert torch.allclose(mean, torch.stack(two).mean(0), equal_nan=True), "combined is no part of the mean"


def test_methods_that_rounding_alone_tells_apart_keep_their_ranks(table):
    def again(model, inputs, targets):
        """The gradient, but for its last bits."""
        x = inputs.clone().requires_grad_(True)
        with torch.enable_grad():
            model(x).gather(1, targets[:, None]).sum().backward()
        return x.grad * (1 + 1e-13 * torch.randn_like(x))

    methods = {"own": "gradient", "again": again}
    result = quick(table, [Spy()], methods, tests=("mpt",), resamples=0)
    assert float(result["spy", "mpt"].vector[2]) == 1.0


def test_any_metric_works(table):
    judged = [vd.qge.QGE("pixel_flipping"), vd.gef.FastGEF(path=(0.1, 0.5, 1.0), draws=1), Spy()]
    result = quick(table, judged, draws=1, iterations=1, resamples=0)
    assert not result.failures
    for label in result.metrics:
        assert 0 <= result.mc(label) <= 1
        assert not result.scores[label].dependence.blind


@dataclass(frozen=True)
class Breaks(Metric):
    name: ClassVar[str] = "breaks"

    def evaluate(self, task, explanation, context):
        if task.reference is not task:
            raise RuntimeError("no perturbation, please")
        return Outcome(explanation.values.double().mean(-1))


def test_a_metric_that_fails_is_named_and_the_others_go_on(table):
    with pytest.warns(VeridicalWarning, match="breaks"):
        result = quick(table, [Breaks(), "sparseness"], ar=0.5, tests=("mpt",), resamples=0)
    broken = quick(table, ["sparseness"], ar=0.5, tests=("mpt",), resamples=0)
    assert result.metrics == ["sparseness"]
    assert "no perturbation, please" in result.failures[0].traceback
    assert "breaks failed" in repr(result)
    assert torch.equal(result["sparseness", "mpt"].vectors, broken["sparseness", "mpt"].vectors)


def test_regression_needs_epsilon_and_works_with_it():
    task = small_table(30, head="regression", targets=0)
    with pytest.raises(InputError, match="epsilon"):
        quick(task, ["sparseness"])
    result = quick(task, ["sparseness"], epsilon=0.3, resamples=0)
    assert 0 < result.mc("sparseness") < 1


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"methods": ["gradient"]}, InputError, "at least two, got 1: gradient"),
        ({"metrics": []}, InputError, "at least one metric"),
        ({"metrics": ["sparsness"]}, UnknownNameError, "sparseness"),
        ({"methods": ["gradient", "salience"]}, UnknownNameError, "saliency"),
        ({"metrics": ["pointing_game"]}, NotApplicableError, "masks"),
        ({"methods": ["gradient", "gradcam"]}, NotApplicableError, "gradcam"),
        ({"draws": 0}, InputError, "draws"),
    ],
)
def test_mistakes_are_named(table, change, error, message):
    options = {"metrics": ["sparseness"], "methods": METHODS, **change}
    with pytest.raises(error, match=message):
        quick(table, options.pop("metrics"), options.pop("methods"), **options)


@dataclass(frozen=True)
class Watch(Metric):
    """Counts the maps that are alive whenever one is scored; `number` tells several of them apart."""

    number: int = 0
    name: ClassVar[str] = "watch"
    seen: ClassVar[list[weakref.ref[torch.Tensor]]] = []
    most: ClassVar[list[int]] = []

    def evaluate(self, task, explanation, context):
        self.seen.append(weakref.ref(explanation.values))
        self.most.append(len({id(found) for ref in self.seen if (found := ref()) is not None}))
        return Outcome(explanation.values.double().sum(-1))


@pytest.mark.parametrize(("metrics", "draws"), [(1, 1), (6, 1), (1, 4)])
def test_memory_grows_neither_with_metrics_nor_with_perturbations(table, metrics, draws):
    Watch.seen.clear(), Watch.most.clear()
    watchers = {f"watch {number}": Watch(number) for number in range(metrics)}
    quick(table, watchers, draws=draws, iterations=1, resamples=0)
    # the maps of one perturbation, the last ones of that before, and an altered one of the dependence check
    assert max(Watch.most) <= 2 * 3 + 1


@pytest.mark.parametrize("test", ["ipt", "mpt"])
def test_samples_that_count_score_as_they_do_among_all(table, test):
    judges = {
        "flip": PixelFlipping(),
        "moved": MaxSensitivity(draws=2),
        "drawn": FaithfulnessCorrelation(runs=5),
    }
    result = quick(table, judges, tests=(test,), iterations=1, resamples=0)
    root = Key(0) / "meta"
    for draw in range(2):
        changed = Perturbation(test, "ar", 0, draw, result.amounts[test, "ar"])
        whole, key = changed.of(table, root), changed.key(root)
        kept = result.kept[test, "ar"][0, draw]
        assert MIN_SAMPLES <= kept.sum() < len(table)
        for place, who in enumerate(METHODS):
            explainer = as_explainer(who)
            for label, metric in judges.items():
                given = explainer if label == "moved" else explainer(whole, key / "explain")
                expected = metric(whole, given, key / "score").values.double()
                found = result.scores[label].perturbed[test, "ar"][0, draw, place]
                assert found[~kept].isnan().all()
                assert torch.allclose(found[kept], expected[kept], rtol=1e-9)


def test_perturbations_under_which_too_few_count_are_not_scored(table):
    options = {"tests": ("mpt",), "ar": {"mpt": 1e-6}, "resamples": 0, "iterations": 1}
    result = quick(table, ["sparseness"], **options)
    assert result.explanations == (1 + 2) * len(METHODS), "two disrupted tasks that disrupt nothing"
    why = result.why_no_value("sparseness")
    assert why == "mpt ar: fewer than 6 predictions changed in 2 of 2 draws; there is no value"
    assert result.why_no_value("sparseness", "mpt") == why
    assert why in result.to_frame()["flags"].iloc[-1]


def test_every_missing_value_has_a_reason(table):
    result = quick(table, ["sparseness", Gappy()], resamples=0)
    assert result.why_no_value("sparseness") == ""
    assert "100.0% of the kept scores are undefined" in result.why_no_value("gappy")
