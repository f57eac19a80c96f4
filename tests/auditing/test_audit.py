"""The audit end to end: right on tasks with a known answer, honest where there is none."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from torch import nn

import veridical as vd
from replications.verdict.scaffolds import Scaffold
from veridical.auditing import EFFORTS, audit
from veridical.errors import InputError, NotApplicableError, UnknownNameError

TINY = replace(
    EFFORTS["glance"],
    name="tiny",
    samples=64,
    search_draws=2,
    damage=(0.5, 1.0),
    meta_samples=0,
    standing_samples=2,
    standing_draws=50,
    training_epochs=3,
)
FAST = replace(TINY, gef_draws=0, standing_samples=0)
PLANT = ["saliency", "input_x_gradient", "integrated_gradients"]


@pytest.fixture(scope="module")
def planted():
    full = replace(TINY, describe=True, meta_samples=16, training_rows=300)
    return audit(
        vd.tasks.load("known/planted_patch"), explainers=[*PLANT, "gradcam"], effort=full, samples=32
    )


def statuses(result):
    return {place.explainer: place.status for place in result.ranking}


@pytest.mark.parametrize("seed", [0, 1])
def test_methods_that_see_the_plant_are_trusted(seed):
    result = audit(
        vd.tasks.load("known/planted_patch"), explainers=PLANT[1:], effort=FAST, samples=40, seed=seed
    )
    assert set(statuses(result).values()) == {"trusted"}
    assert result.best in PLANT


def test_controls_given_as_methods_are_called_out():
    """Noise, the size of the input and noise that moves with the outputs, as if they were explainers."""

    def size(model, inputs, targets):
        return inputs.abs()

    def noise(model, inputs, targets):
        return torch.rand(
            inputs.shape, generator=torch.Generator().manual_seed(int(1e3 * inputs.abs().sum()) % 2**31)
        )

    def moving(model, inputs, targets):
        towards = torch.randn(2, 12, generator=torch.Generator().manual_seed(0))
        return noise(model, inputs, targets) + model(inputs) @ towards

    given = {"honest": "integrated_gradients", "size": size, "noise": noise, "moving": moving}
    result = audit(vd.tasks.load("known/linear"), explainers=given, effort=TINY, samples=40, describe=True)
    assert result.best == "honest"
    words = statuses(result)
    assert words.pop("honest") == "trusted"
    assert not {"trusted", "provisional"} & set(words.values())
    assert words["size"] in ("not decided", "adds nothing shown")
    # GEF, which decided once, prefers the noise that moves
    q = {who: result.evaluation.scores[who, "fast_gef"].mean() for who in ("honest", "moving")}
    assert q["moving"] > 0.3


def test_a_model_that_ignores_its_input_gives_no_verdict():
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    with torch.no_grad():
        model.weight.zero_()
    result = audit(vd.Task(model, torch.randn(24, 6)), explainers=["saliency", "occlusion"], effort=FAST)
    assert result.best is None
    assert result.sentences[0].startswith("No verdict: the model gives all 24 samples the same output")


def test_samples_that_repeat_count_once():
    """Four rows, each eight times, are four samples, whatever their ids."""
    task = vd.tasks.load("known/linear")[:4]
    eight = vd.Task(task.model, task.inputs.repeat(8, 1), fill=0.0)
    result = audit(eight, explainers=["input_x_gradient", "occlusion"], effort=FAST)
    assert result.best is None
    assert result.sentences[0].startswith("No verdict: 4 samples are too few")
    assert any("28 samples repeat others and were left out" in note for note in result.notes)


def test_the_result_is_complete(planted):
    assert planted.best in [p.explainer for p in planted.ranking]
    frame = planted.to_frame()
    shown = {
        "explainer",
        "score",
        "low",
        "high",
        "p",
        "status",
        "reason",
        "grade: value",
        "removal",
        "sample",
    }
    assert shown <= set(frame.columns)
    assert bool(frame[["score", "low", "high"]].stack().between(0, 1).all())
    assert planted.best in repr(planted)
    assert planted.best in planted._repr_html_()
    assert {j.criterion for j in planted.verdict.metrics} >= {
        "removal", "truth", "faithfulness", "robustness", "randomisation", "complexity", "localisation",
    }  # fmt: skip
    assert planted.verdict.criteria == ("removal", "randomisation", "truth", "sample")
    assert planted.damage is not None
    assert set(planted.seconds) >= {"checks", "elimination", "description", "verdict"}
    assert planted.costs["elimination"].forward > 0
    assert planted.standings
    assert len(planted.beside) == 3
    plain = json.loads(json.dumps(planted.to_json(), allow_nan=False))
    assert plain["best"] == planted.best
    assert plain["call"].startswith("vd.audit(task, explainers=[")


def test_the_model_and_the_task_are_left_alone():
    task = vd.tasks.load("known/linear")
    before = [p.clone() for p in task.model.parameters()], task.inputs.clone()
    audit(task, explainers=["saliency", "occlusion"], effort=FAST, samples=24)
    assert all(torch.equal(a, b) for a, b in zip(before[0], task.model.parameters(), strict=True))
    assert torch.equal(before[1], task.inputs)


@pytest.mark.parametrize("name", ["known/interactions", "known/planted_window", "reviews", "diabetes"])
def test_every_kind_of_input_can_be_audited(name):
    task = vd.tasks.load(name)
    result = audit(task, explainers=["input_x_gradient", "integrated_gradients"], effort=FAST, samples=40)
    assert len(result.ranking) == 2
    assert result.verdict.deciding
    assert result.ranking[0].score > 0.7


def test_a_black_box_is_trusted_provisionally():
    """A boosted table: all methods that ask by masks are tried, and no weights can be drawn afresh."""
    rows = torch.randn(200, 5, generator=torch.Generator().manual_seed(0))
    labels = (2 * rows[:, 0] - rows[:, 1] + rows[:, 2] * rows[:, 3] > 0).long()
    model = HistGradientBoostingClassifier(max_iter=20, random_state=0).fit(rows.numpy(), labels.numpy())
    task = vd.Task(model, rows[:40], labels=labels[:40], train=(rows[40:], labels[40:]))
    result = audit(task, effort=FAST)
    assert {"occlusion", "lime", "kernel_shap", "rise", "permutation_importance"} <= set(statuses(result))
    assert result.best is not None
    assert result.verdict[result.best].status == "provisional"
    assert result.sentences[0].startswith("Use, provisionally, ")
    assert any("no weights" in said for said in result.sentences)
    # 2^5 subsets of 40 samples decide everything; each is evaluated on the fill's 100 rows. What a map costs
    # is counted beforehand, once per method on one sample of its own
    assert result.costs["elimination"].forward <= 2 * 40 * 2**5 * 100


def test_the_user_may_choose_metrics_controls_and_criteria():
    task = vd.tasks.load("known/linear")
    chosen = {"flips": "pixel_flipping", "coin": "sparseness"}
    result = audit(
        task,
        explainers=["occlusion", "saliency"],
        metrics=chosen,
        controls=["random", "constant"],
        criteria=["removal"],
        effort=FAST,
        samples=24,
    )
    assert [j.metric for j in result.verdict.metrics if j.decides] == ["flips", "coin"]
    assert [j.metric for j in result.verdict.deciding] == ["flips"]
    assert "1 of 2 deciding measures do not see damage planted here, and do not count." in result.sentences
    assert [p.explainer for p in result.verdict.controls] == ["random", "constant"]
    assert result.verdict.criteria == ("removal", "sample")
    assert result.best == "occlusion"
    assert result.verdict["occlusion"].status == "provisional"


def test_what_does_not_fit_the_budget_is_named_first():
    task = vd.tasks.load("known/planted_window")
    result = audit(task, effort=FAST, samples=24, budget=60_000)
    dear = [name for name, why in result.skipped_explainers.items() if "budget" in why]
    assert "kernel_shap" in dear
    assert any(said.startswith("Not tried, for lack of budget") for said in result.verdict.words.answer)
    assert result.costs["elimination"].forward + result.costs["elimination"].backward < 4 * 60_000
    named = audit(task, explainers=["kernel_shap", "saliency"], effort=FAST, samples=24)
    assert "kernel_shap" in statuses(named)
    with pytest.raises(InputError, match="no explainer fits the budget"):
        audit(task, effort=FAST, samples=24, budget=100)


def test_those_that_lose_leave_early_and_it_is_recorded():
    def reverse(model, inputs, targets):
        return -vd.explain("occlusion", vd.Task(model, inputs, targets=targets, fill=0.0)).values

    result = audit(
        vd.tasks.load("known/linear"),
        explainers={"reverse": reverse, "good": "occlusion"},
        effort=FAST,
        samples=64,
    )
    lost = result.verdict["reverse"]
    assert lost.samples == 24
    assert lost.dropped.startswith("after 24 samples: it loses to random")
    assert result.verdict["good"].samples == 64


def test_an_explainer_that_raises_is_recorded_and_the_rest_goes_on():
    def broken(model, inputs, targets):
        raise RuntimeError("out of ideas")

    with pytest.warns(vd.errors.VeridicalWarning, match="out of ideas"):
        result = audit(
            vd.tasks.load("known/linear"),
            explainers={"broken": broken, "x": "saliency", "y": "occlusion"},
            effort=FAST,
            samples=24,
        )
    assert any(f.explainer == "broken" and "out of ideas" in f.message for f in result.evaluation.failures)
    assert statuses(result)["broken"] == "not decided"
    assert "broken: not decided; its map failed: out of ideas." in result.sentences


def test_nobody_beats_a_control_that_failed():
    def broken(model, inputs, targets):
        raise RuntimeError("no map")

    with pytest.warns(vd.errors.VeridicalWarning, match="no map"):
        result = audit(
            vd.tasks.load("known/linear"),
            explainers=["occlusion"],
            controls={"random": "random", "broken": broken},
            effort=FAST,
            samples=24,
        )
    assert {test.rival for test in result.verdict["occlusion"].tests if test.criterion == "removal"} == {
        "random"
    }
    assert any("Nobody is compared with the control broken" in note for note in result.notes)


def test_a_few_samples_do_not_prove_a_model_wrong():
    """83.3% of 24 rows with a commonest answer of 75% is not shown to be better, nor shown not to be."""
    labels = torch.tensor([0] * 18 + [1] * 6)
    answers = labels.clone()
    answers[:4] = 1 - answers[:4]
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-1.0, 0.0], [1.0, 0.0]]))
        model.bias.zero_()
    inputs = torch.stack([2.0 * answers - 1, torch.ones(24)], 1)
    task = vd.Task(model, inputs, labels=labels, fill=0.0)
    check = next(c for c in vd.auditing.check_model(task, task, TINY, 0).checks if c.name == "accuracy")
    assert check.passed is None
    assert "is not shown to be better than chance" in check.sentence
    # more samples than are explained are asked
    whole = vd.Task(model, inputs.repeat(8, 1), labels=labels.repeat(8), fill=0.0)
    assert next(
        c for c in vd.auditing.check_model(task, whole, TINY, 0).checks if c.name == "accuracy"
    ).passed


def test_of_few_features_one_is_masked_at_least():
    """A tenth of four features is none, which would disturb nobody."""
    model = nn.Linear(4, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[5.0] * 4, [-5.0] * 4]))
        model.bias.zero_()
    # rows that differ a little: equal ones would share their draws
    inputs = torch.tensor([[3.0, -1.0, -1.0, -0.5]]) + 0.001 * torch.arange(16.0)[:, None]
    task = vd.Task(model, inputs, fill=0.0)
    checks = vd.auditing.check_model(task, task, TINY, 0)
    assert 0.05 < checks.masking_loss < 0.5
    assert any("Masking 25% of the features" in check.sentence for check in checks.checks)


def test_efforts_grow():
    efforts = [EFFORTS[name] for name in ("glance", "quick", "standard", "thorough")]
    for less, more in pairwise(efforts):
        assert less.samples < more.samples
        assert less.meta_samples <= more.meta_samples
        assert less.budget < more.budget
        assert less.meta_draws * less.meta_iterations <= more.meta_draws * more.meta_iterations


def test_training_rows_make_a_fine_tuned_model():
    few = replace(FAST, training_rows=64, training_epochs=1)
    bounded = audit(vd.tasks.load("digits"), explainers=["saliency"], effort=few, samples=24)
    assert bounded.checks.masking_hurts
    assert "ffid_plus" in {role.metric for role in bounded.verdict.metrics}
    made = bounded.evaluation.scores["saliency", "ffid_plus"].provenance["finetuned"]
    # one epoch over 64 rows, of which a tenth is held out
    assert made["epochs"] == 1
    assert sum(made["cost"]) < 500


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"effort": "quickest"}, UnknownNameError, "quick"),
        ({"samples": 1}, InputError, "samples is a whole number from 2"),
        ({"explainers": ["random"]}, InputError, "no explainer to audit"),
        ({"explainers": ["gradcam"]}, NotApplicableError, "gradcam"),
        ({"budget": 0}, InputError, "budget is a whole number from 1"),
        ({"criteria": ["removals"]}, UnknownNameError, "removal"),
        ({"criteria": ["randomisation"]}, InputError, "no verdict stands without"),
        ({"criteria": torch.arange(2)}, InputError, "criteria is several"),
        ({"metrics": ["max_sensitivity"]}, InputError, "none of these metrics scores finished maps"),
        ({"metrics": []}, InputError, "none of these metrics scores finished maps"),
    ],
)
def test_bad_input_is_refused(given, error, said):
    with pytest.raises(error, match=said):
        audit(vd.tasks.load("known/linear"), **{"effort": FAST, "concepts": (), **given})


def test_one_sample_and_classes_are_refused():
    with pytest.raises(InputError, match="at least two"):
        audit(vd.tasks.load("known/linear")[:1])
    with pytest.raises(InputError, match="classes"):
        audit(vd.gef.class_task(vd.tasks.load("digits")))


def rows_of(task, methods, samples):
    """What the stages of an audit take by its estimate, without planted damage."""
    table = audit(task, explainers=methods, effort=FAST, samples=samples, dry_run=True).to_frame()
    return int(table[~table.stage.isin(["planted damage", "nearly the same weights"])].forward.sum())


def test_who_stops_early_says_so_at_once():
    task, methods = vd.tasks.load("known/linear"), ["input_x_gradient", "occlusion"]
    result = audit(
        task, explainers=methods, effort=FAST, samples=40, budget=120_000
    )  # about 4,200 rows a sample
    said = next(one for one in result.verdict.words.answer if one.startswith("Decided on "))
    assert said.startswith(
        "Decided on 24 of 200 distinct samples; 40 were planned, but the next stage does not fit the budget"
    )


def test_a_budget_holds_back_the_dearest_undecided_method_and_not_the_samples():
    def dear(model, inputs, targets):
        for _ in range(1000):
            model(inputs)
        maps = vd.explain("input_x_gradient", vd.Task(model, inputs, targets=targets, fill=0.0)).values
        noise = torch.randn(inputs.shape, generator=torch.Generator().manual_seed(len(inputs)))
        return maps + maps.std() * noise

    torch.manual_seed(0)
    task, good = vd.Task(nn.Linear(16, 2), torch.randn(64, 16)), {"good": "input_x_gradient"}
    all_, alone = (rows_of(task, methods, 64) for methods in ({**good, "dear": dear}, good))
    budget = int(1.1 * (alone + (all_ - alone) * 24 / 64))
    result = audit(task, explainers={**good, "dear": dear}, effort=FAST, samples=64, budget=budget)
    assert {place.explainer: place.samples for place in result.ranking} == {"good": 64, "dear": 24}
    assert result.verdict["dear"].status == "not decided"
    assert "the budget" in " ".join(result.sentences)
    assert result.best == "good"


def test_what_decides_nothing_waits_until_it_is_asked_for():
    task, methods = vd.tasks.load("known/linear"), ["input_x_gradient", "saliency"]
    bare, whole = (
        audit(task, explainers=methods, effort=replace(TINY, meta_samples=24), describe=describe, samples=24)
        for describe in (None, True)
    )
    stages = ("description", "meta-evaluation", "neighbours", "standing", "another fill", "concepts")
    assert not any(bare.costs[stage].rows for stage in stages)
    assert bare.costs["checks"].rows <= 24 * 7 + len(task)  # some masks, and its accuracy
    assert (bare.standings, bare.beside, bare.reliability) == ({}, (), None)
    assert all(whole.costs[stage].rows for stage in stages[:5])
    assert all((whole.standings, whole.beside, whole.reliability))
    assert bare.to_frame().equals(whole.to_frame())  # the same decision, to the last bit
    kept = "Where mean takes the place of removed features instead of zero, every method keeps its word."
    assert kept in whole.verdict.words.remarks
    named = audit(task, explainers=methods, metrics=["qge:pixel_flipping", "avg_sensitivity"], effort=TINY)
    assert ("saliency", "avg_sensitivity") in named.evaluation.scores  # who names a metric asks for it


@pytest.mark.parametrize(
    ("name", "methods", "effort"),
    [
        ("known/linear", ["input_x_gradient", "occlusion"], "quick"),
        ("digits", ["kernel_shap", "integrated_gradients"], "glance"),
    ],
)
def test_what_an_audit_evaluates_is_known_before(name, methods, effort):
    task = vd.tasks.load(name)
    before = task.predictor.meter.cost
    expected = audit(task, explainers=methods, effort=effort, samples=64, dry_run=True)
    assert (task.predictor.meter.cost - before).forward < 0.01 * expected.cost.forward
    costs = audit(task, explainers=methods, effort=effort, samples=64).costs
    assert costs["elimination"].forward / 1.5 < expected.cost.forward < 1.5 * costs["elimination"].forward
    table = expected.to_frame()
    assert table.forward.sum() == pytest.approx(expected.cost.forward, abs=len(table))
    assert set(methods) < set(table.method)
    assert (table.mib > 0).all()
    assert f"{expected.cost.forward:,} rows forward" in repr(expected)


def test_a_forecast_is_an_upper_bound_where_reference_rows_fill():
    """Checks of the model evaluate masks times rows too, and those of all reference rows once."""
    rows = torch.randn(300, 6, generator=torch.Generator().manual_seed(0)).double()
    weight = torch.tensor([1.0, -2.0, 0.5, 0.3, 0.0, 1.0]).double()

    def model(x):
        return torch.stack([-(x @ weight).tanh(), x[:, 0] * x[:, 1]], 1)

    task = vd.Task(model, rows[:48], train=rows[48:], labels=torch.zeros(48, dtype=torch.int64))
    given = {"explainers": ["occlusion", "kernel_shap"], "effort": "quick", "samples": 48}
    expected = audit(task, dry_run=True, **given)
    costs = audit(task, **given).costs
    assert "checks of the model" in set(expected.to_frame().stage)
    assert expected.cost.forward >= sum(cost.forward for cost in costs.values())


def test_what_cannot_be_judged_is_not_explained():
    task, methods = vd.tasks.load("known/linear"), ["input_x_gradient", "saliency"]
    few = audit(task, explainers=methods, effort=TINY, samples=23)
    constant = vd.Task(nn.Sequential(nn.Linear(4, 2), nn.Threshold(1e9, 1.0)), torch.randn(40, 4))
    still = audit(constant, explainers=methods, effort=TINY)
    for result, why in ((few, "23 samples are too few; give at least 24"), (still, "the same output")):
        assert result.sentences[0].startswith("No verdict: ")
        assert why in result.sentences[0]
        assert why in repr(audit(result.task, explainers=methods, effort=TINY, dry_run=True))
        assert not result.evaluation.scores
        assert result.costs["elimination"].rows == result.costs["randomisation"].rows == 0
        assert set(statuses(result).values()) == {"no verdict"}
        json.dumps(result.to_json(), allow_nan=False)
        result.to_frame()


def test_a_model_that_lies_off_its_data_does_not_turn_the_verdict_round():
    """After Slack et al. 2020: column 0 decides on the data, columns 1 and 2 decide on masked rows."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(300, 3, generator=generator) @ torch.randn(3, 8, generator=generator)
    task = vd.Task(Scaffold(rows, [0], [1, 2]), rows[:64], train=rows)
    result = audit(task, explainers=["saliency", "lime", "kernel_shap"], effort=FAST)
    assert statuses(result)["saliency"] == "provisional"
    assert not {"trusted", "provisional"} & {statuses(result)["lime"], statuses(result)["kernel_shap"]}
    asked = {question.criterion: question for question in result.verdict["saliency"].questions}
    assert asked["removal"].state == "not asked"
    assert "by another rule" in asked["removal"].reason
    assert asked["near"].state == "shown"
    assert result.sentences[0].startswith(
        "Use, provisionally, saliency: when features go towards near rows it beats noise in "
    )
    assert any("by another rule" in said and "provisional" in said for said in result.verdict.words.remarks)


def test_whether_removal_is_about_the_data_is_said_on_the_first_page():
    result = audit(vd.tasks.load("known/linear"), explainers=["occlusion"], effort=FAST, samples=24)
    said = [one for one in result.verdict.words.remarks if "emoval is about the data" in one]
    assert len(said) == 1
