"""The audit end to end: right on tasks with a known answer, honest where there is none."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import nn

import veridical as vd
from veridical.audit import EFFORTS, audit, check_model, cost
from veridical.audit.cost import estimated_rows
from veridical.audit.panel import choose_explainers, choose_judges
from veridical.audit.scoring import unscored
from veridical.errors import InputError, NotApplicableError, UnknownNameError
from veridical.values.evaluation import Evaluation, Failure

TINY = replace(
    EFFORTS["quick"],
    gef_draws=2,
    removal_draws=4,
    flip_steps=8,
    subset_runs=16,
    noise_draws=2,
    meta_samples=16,
    meta_draws=1,
    standing_samples=2,
    standing_draws=50,
)
PLANT = ["saliency", "input_x_gradient", "integrated_gradients"]


@pytest.fixture(scope="module")
def planted():
    return audit(vd.tasks.load("known/planted_patch"), effort=TINY, samples=32)


def assert_plant_is_seen(result, seeing=PLANT):
    """Methods that see the plant beat the controls and one of them wins; controls lose to all of them."""
    places = {p.explainer: p for p in result.verdict.places}
    assert all(places[name].trusted for name in seeing)
    assert all(places[name].score > places[rival].score for name in seeing for rival in ("random", "sobel"))
    top = max(p.score for p in result.ranking)
    assert any(top - places[name].score < 0.05 for name in seeing)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_methods_that_see_the_plant_win(seed):
    result = audit(
        vd.tasks.load("known/planted_patch"), explainers=[*PLANT, "gradcam"], samples=40, seed=seed
    )
    assert_plant_is_seen(result)
    assert result.best in PLANT


def test_controls_given_as_methods_are_called_out():
    """Noise and edges under other names, as if they were explainers of their own."""

    def edges(model, inputs, targets):
        return vd.explain("sobel", vd.Task(model, inputs, targets=targets)).maps()

    def noise(model, inputs, targets):
        return torch.rand(
            inputs.shape, generator=torch.Generator().manual_seed(int(1e3 * inputs.abs().sum()) % 2**31)
        )

    given = {"honest": "integrated_gradients", "edges": edges, "noise": noise}
    result = audit(vd.tasks.load("known/planted_patch"), explainers=given, effort=TINY, samples=40)
    assert result.best == "honest"
    trusted = {p.explainer: p.trusted for p in result.ranking}
    assert trusted == {"honest": True, "edges": False, "noise": False}
    text = " ".join(result.sentences)
    assert "Do not trust" in text
    assert "edges" in text


def test_nothing_better_than_chance_is_said():
    def noise(salt):
        def explain(model, inputs, targets):
            seed = (salt + int(1e3 * inputs.abs().sum())) % 2**31
            return torch.rand(inputs.shape, generator=torch.Generator().manual_seed(seed))

        return explain

    result = audit(
        vd.tasks.load("known/planted_patch"),
        explainers={"a": noise(1), "b": noise(2)},
        effort=TINY,
        samples=40,
    )
    assert result.best is None
    assert result.sentences[0].startswith("No method is better than chance on this model")


def test_a_model_that_ignores_its_input_gives_no_winner():
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    with torch.no_grad():
        model.weight.zero_()
    result = audit(vd.Task(model, torch.randn(24, 6)), explainers=["saliency", "occlusion"], effort=TINY)
    assert result.best is None


def test_the_result_is_complete(planted):
    assert planted.best in [p.explainer for p in planted.ranking]
    assert planted.ranking[0].score >= planted.ranking[-1].score
    frame = planted.to_frame()
    assert {"explainer", "score", "low", "high", "p_best", "trusted"} <= set(frame.columns)
    assert frame["p_best"].sum() == pytest.approx(1.0)
    assert planted.best in repr(planted)
    assert planted.best in planted._repr_html_()
    systems = {j.system for j in planted.verdict.judges}
    assert {
        "GEF",
        "F-Fidelity",
        "QGE",
        "robustness",
        "randomisation",
        "complexity",
        "localisation",
    } <= systems
    assert planted.reliability is not None
    assert set(planted.seconds) >= {"checks", "scoring", "meta-evaluation", "verdict"}
    assert planted.costs["scoring"].forward > 0
    assert planted.standings
    assert "kernel_shap" in planted.skipped_explainers
    plain = json.loads(json.dumps(planted.to_json()))
    assert plain["best"] == planted.best


def test_the_same_seed_gives_the_same_verdict(planted):
    again = audit(vd.tasks.load("known/planted_patch"), effort=TINY, samples=32)
    assert again.sentences == planted.sentences
    assert again.to_frame().equals(planted.to_frame())


def test_the_model_and_the_task_are_left_alone():
    task = vd.tasks.load("known/linear")
    before = [p.clone() for p in task.model.parameters()], task.inputs.clone()
    audit(task, explainers=["saliency", "occlusion"], effort=TINY, samples=16)
    assert all(torch.equal(a, b) for a, b in zip(before[0], task.model.parameters(), strict=True))
    assert torch.equal(before[1], task.inputs)


@pytest.mark.parametrize("name", ["known/interactions", "known/planted_window", "reviews", "diabetes"])
def test_every_kind_of_input_can_be_audited(name):
    task = vd.tasks.load(name)
    result = audit(
        task, explainers=["input_x_gradient", "integrated_gradients", "saliency"], effort=TINY, samples=24
    )
    assert len(result.ranking) == 3
    assert result.ranking[0].trusted
    assert result.ranking[0].explainer != "saliency" or name == "known/planted_window"
    assert result.verdict.deciding


def test_a_black_box_is_audited_without_gradients_and_weights():
    linear = torch.tensor([[3.0, -2.0, 0.0, 0.0, 1.0]])

    def model(x):
        return (x @ linear.T.double().to(x.dtype)) @ torch.tensor([[1.0, -1.0]], dtype=x.dtype)

    task = vd.Task(
        lambda x: model(x).detach(), torch.randn(40, 5, generator=torch.Generator().manual_seed(0)), fill=0.0
    )
    result = audit(task, explainers=["occlusion", "lime"], effort=TINY)
    assert "gef" in result.skipped_metrics
    assert result.best in ("occlusion", "lime")


def test_training_rows_make_a_fine_tuned_judge():
    result = audit(
        vd.tasks.load("digits"), explainers=["integrated_gradients", "saliency"], effort=TINY, samples=48
    )
    labels = {j.metric for j in result.verdict.judges}
    if result.checks.masking_hurts:
        assert {"ffid_plus", "ffid_minus"} <= labels
        assert result.robustness is not None
    else:
        assert {"rfid_plus", "rfid_minus"} <= labels


def test_rows_to_fine_tune_on_are_bounded_and_given_ones_are_used():
    task = vd.tasks.load("digits")[:24]
    few = replace(TINY, training_rows=64, training_epochs=1)
    explainers = ["integrated_gradients", "saliency"]
    bounded = audit(task, explainers=explainers, effort=few)
    given = audit(task, (task.train[:100], task.train_labels[:100]), explainers, few)
    for result in (bounded, given):
        assert result.checks.masking_hurts
        assert "ffid_plus" in {j.metric for j in result.verdict.judges}
        seats = [s for (_, m), s in result.evaluation.scores.items() if m == "ffid_plus"]
        # one epoch over 64 rows, of which a tenth is held out
        assert seats[0].provenance["finetuned"]["epochs"] == 1
        assert sum(seats[0].provenance["finetuned"]["cost"]) < 500
    none = audit(task, explainers=explainers, effort=replace(few, training_rows=0))
    assert "rfid_plus" in {j.metric for j in none.verdict.judges}
    assert any("no time to fine-tune" in note for note in none.notes)


def test_an_explainer_that_raises_is_recorded_and_the_rest_goes_on():
    def broken(model, inputs, targets):
        raise RuntimeError("out of ideas")

    with pytest.warns(vd.errors.VeridicalWarning, match="out of ideas"):
        result = audit(
            vd.tasks.load("known/linear"),
            explainers={"broken": broken, "x": "saliency", "y": "occlusion"},
            effort=TINY,
            samples=16,
        )
    assert any(f.explainer == "broken" and "out of ideas" in f.message for f in result.evaluation.failures)
    assert "broken" not in [p.explainer for p in result.ranking]


def test_cells_without_a_score_are_said():
    task = vd.tasks.load("known/linear")[:8]
    panel = choose_explainers(task, ["saliency", "occlusion"], TINY)
    seats, _ = choose_judges(task, TINY, None)
    failures = [
        Failure("saliency", "gef", "", ""),
        Failure("random", "gef", "", ""),
        Failure("occlusion", "sparseness", "", ""),
    ]
    said = list(unscored(Evaluation(task, {}, {}, failures, True, 0), seats, panel))
    assert len(said) == 3
    assert "interrupted" in said[0]
    assert said[1].startswith("gef failed on saliency, which counts as last")
    assert said[2].startswith("gef failed on random")


def test_a_control_keeps_its_name_apart_from_an_explainer_of_the_same():
    given = {"random": "saliency", "random (control)": "occlusion"}
    panel = choose_explainers(vd.tasks.load("known/linear")[:8], given, TINY)
    assert list(panel.explainers) == list(given)
    assert "random (control) (control)" in panel.controls


def test_masked_labels_are_compared_label_by_label():
    """A multilabel head whose answers no mask can move."""
    model = nn.Linear(10, 3)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.copy_(torch.tensor([1.0, 2.0, -1.0]))
    task = vd.Task(model, torch.randn(12, 10, generator=torch.Generator().manual_seed(0)), head="multilabel")
    checks = check_model(task, TINY, 0)
    assert checks.masking_loss == 0.0
    assert not checks.masking_hurts


def test_of_few_features_one_is_masked_at_least():
    """A tenth of four features is none, which would disturb nobody."""
    model = nn.Linear(4, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[5.0] * 4, [-5.0] * 4]))
        model.bias.zero_()
    inputs = torch.tensor([[3.0, -1.0, -1.0, -0.5]]).repeat(16, 1)
    checks = check_model(vd.Task(model, inputs, fill=0.0), TINY, 0)
    assert 0.05 < checks.masking_loss < 0.5
    assert any("Masking 25% of the features" in check.sentence for check in checks.checks)


def test_efforts_grow():
    efforts = [EFFORTS[name] for name in ("glance", "quick", "standard", "thorough")]
    for less, more in pairwise(efforts):
        assert less.samples < more.samples
        assert less.meta_samples < more.meta_samples
        assert less.meta_draws * less.meta_iterations < more.meta_draws * more.meta_iterations


def test_the_estimate_is_near_what_is_asked():
    task = vd.tasks.load("known/linear")[:32]
    panel = choose_explainers(task, ["saliency", "integrated_gradients"], TINY)
    seats, _ = choose_judges(task, TINY, None)
    result = audit(task, explainers=["saliency", "integrated_gradients"], effort=TINY)
    asked = sum(result.costs[stage].forward for stage in ("scoring", "meta-evaluation"))
    assert 0.5 < estimated_rows(task, panel, seats, TINY) / asked < 2


def test_a_long_audit_says_so_beforehand(monkeypatch):
    monkeypatch.setattr(cost, "LONG_SECONDS", 0.0)
    with pytest.warns(vd.errors.VeridicalWarning, match="perhaps .* here"):
        audit(vd.tasks.load("known/linear"), explainers=["saliency", "occlusion"], effort="glance")


def test_bad_input_is_refused():
    task = vd.tasks.load("known/linear")
    with pytest.raises(UnknownNameError, match="quick"):
        audit(task, effort="quickest")
    with pytest.raises(InputError, match="at least two"):
        audit(task[:1])
    with pytest.raises(InputError, match="samples is a whole number from 2"):
        audit(task, samples=1)
    with pytest.raises(InputError, match="no explainer to audit"):
        audit(task, explainers=["random"])
    with pytest.raises(NotApplicableError, match="gradcam"):
        audit(task, explainers=["gradcam"])
    with pytest.raises(InputError, match="classes"):
        audit(vd.gef.class_task(vd.tasks.load("digits")))
