"""Every explainer and metric on gates: it works, or it refuses in a sentence that says why."""

from __future__ import annotations

import warnings

import pytest
import torch

import veridical as vd
from tests.data_tasks.test_generation import ANSWERS, FOILS, PROMPTS, QUESTIONS, made
from tests.data_tasks.test_switching import network
from veridical.errors import VeridicalError
from veridical.explainers.base import registry as explainers
from veridical.metrics.base import ExplainerMetric
from veridical.metrics.base import registry as metrics

SIX = {
    "prompts": PROMPTS * 3,
    "questions": QUESTIONS * 3,
    "answers": ANSWERS * 3,
    "foils": FOILS * 3,
}
# these ask a model at inputs that are moved a little, or by a rule for one kind of input
NEVER = {
    "avg_sensitivity",
    "max_sensitivity",
    "local_lipschitz",
    "relative_input_stability",
    "relative_output_stability",
    "relative_representation_stability",
    "smooth_mprt",
    "input_invariance",
    "continuity",
    "focus",
    "irof",
    "road",
}
REMOVAL = {
    "comprehensiveness",
    "deletion",
    "faithfulness_correlation",
    "faithfulness_estimate",
    "fid_minus",
    "fid_plus",
    "infidelity",
    "insertion",
    "kept_features",
    "monotonicity",
    "monotonicity_correlation",
    "non_sensitivity",
    "pixel_flipping",
    "region_perturbation",
    "rfid_minus",
    "rfid_plus",
    "selectivity",
    "sensitivity_n",
    "text_sufficiency",
}


def tasks():
    net, x, other = network()
    yield "prompts", made(**SIX)
    yield "shorter prompts", made(**SIX, off="drop")
    yield (
        "channels",
        vd.data.switch(vd.Task(net, x), vd.models.Channels("0"), vd.models.Counterfactual(other)),
    )
    yield "heads", vd.data.switch(made(**SIX), vd.models.Heads(), vd.models.Zeroed())


TASKS = dict(tasks())


@pytest.mark.parametrize("name", sorted(explainers))
def test_explainers(name):
    worked = []
    for kind, task in TASKS.items():
        maker = explainers.make(name)
        if maker.why_not(task) is not None:
            with pytest.raises(VeridicalError):
                vd.explain(name, task)
            continue
        explanation = vd.explain(name, task)
        assert explanation.values.isfinite().all()
        assert explanation.values.shape == task.inputs.shape
        worked.append(kind)
        if "gradient" in maker.needs:
            assert kind != "shorter prompts"
    if name in ("occlusion", "kernel_shap", "exact_shapley", "lime", "random"):
        assert len(worked) == len(TASKS)
    if name in ("smoothgrad", "vargrad", "smoothgrad_squared", "gradcam"):
        assert not worked


@pytest.mark.parametrize("name", sorted(metrics))
def test_metrics(name):
    for kind, task in TASKS.items():
        metric = metrics.make(name)
        if isinstance(metric, ExplainerMetric) and name.startswith("gef") and kind != "channels":
            continue  # GEF on prompts has tests of its own
        judged = "occlusion" if isinstance(metric, ExplainerMetric) else vd.explain("occlusion", task)
        if metric.why_not(task) is not None:
            assert name not in REMOVAL
            with pytest.raises(VeridicalError):
                vd.score(metric, task, judged)
            continue
        assert name not in NEVER
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scores = vd.score(metric, task, judged)
        assert scores.values.shape == (len(task),)
        if name in REMOVAL:
            assert scores.values.isfinite().any(), kind


def test_a_fill_that_leaves_units_partly_on_is_refused():
    task = TASKS["prompts"]
    explanation = vd.explain("occlusion", task)
    for fill in (vd.fills.UniformNoise(), vd.fills.Constant(0.5)):
        with pytest.raises(VeridicalError, match="a unit that is off is 0"):
            vd.score("pixel_flipping", task.with_fill(fill), explanation)


def test_fid_of_a_prompt_is_the_fall_of_its_log_probability():
    task = TASKS["prompts"][[1, 3, 5]]
    explanation = vd.explain("occlusion", task)
    first = explanation.values.argmax(-1)
    gates = task.inputs.scatter(1, first[:, None], 0.0)
    fell = task.outputs - task.with_inputs(gates).outputs
    details = vd.score("fid_plus", task, explanation).details
    at = details["probability"].isfinite().double().argmax(-1, keepdim=True)
    torch.testing.assert_close(details["probability"].gather(1, at)[:, 0], fell[:, 0], atol=1e-7, rtol=0)
    torch.testing.assert_close(details["indicator"].gather(1, at)[:, 0], fell[:, 0], atol=1e-7, rtol=0)
