"""Everything registered is discovered and run through the contract battery, on every kind of input."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

import veridical as vd
from veridical import testing
from veridical.explainers import Explainer
from veridical.explainers import registry as explainers
from veridical.metrics import Metric, Outcome
from veridical.metrics import registry as metrics

# promises do not depend on how often a metric draws, and the battery runs each a dozen times
QUICK = {
    name: {"draws": 3, "sizes": (0.2, 0.5)} for name in ("rfid_plus", "rfid_minus", "ffid_plus", "ffid_minus")
}


@pytest.mark.parametrize("modality", testing.MODALITIES)
@pytest.mark.parametrize("name", list(explainers))
def test_explainer_keeps_its_promises(name: str, modality: str) -> None:
    testing.check_explainer(explainers.make(name), modality)


# settings that take another path through a metric than its defaults
OTHER_SETTINGS = [
    ("pixel_flipping", {"order": "lerf"}),
    ("infidelity", {"perturbation": "noise", "draws": 10}),
    ("selectivity", {"patch": 2}),
    ("region_perturbation", {"patch": 2}),
    ("mprt", {"similarity": "pearson", "order": "independent"}),
    ("random_logit", {"similarity": "pearson", "absolute": True}),
    ("non_sensitivity", {"group": 4}),
    ("top_k_intersection", {"k": 0.25}),
]


@pytest.mark.parametrize(("name", "settings"), OTHER_SETTINGS, ids=[name for name, _ in OTHER_SETTINGS])
def test_other_settings_keep_the_same_promises(name: str, settings: dict[str, object]) -> None:
    assert testing.check_metric(metrics.make(name, **settings), "image")


@pytest.mark.parametrize("modality", testing.MODALITIES)
@pytest.mark.parametrize("name", list(metrics))
def test_metric_keeps_its_promises(name: str, modality: str) -> None:
    testing.check_metric(metrics.make(name, **QUICK.get(name, {})), modality)


def test_everything_applies_somewhere() -> None:
    of_other_models = {"tree_shap", "attention_rollout", "gradient_x_attention", "reagent", "value_zeroing"}
    for table in (explainers, metrics):
        for name in set(table) - of_other_models:
            thing = table.make(name)
            kinds = [
                kind
                for kind in testing.MODALITIES
                if thing.inapplicable_reason(testing.tiny_task(kind)) is None
            ]
            assert kinds, f"{name} applies to none of the tiny tasks"


# --- the battery itself must be able to fail -----------------------------------------------------------


@dataclass(frozen=True)
class BatchDependent(Metric):
    name: ClassVar[str] = "batch_dependent"

    def evaluate(self, task: vd.Task, explanation: vd.Explanation, context: vd.models.Context) -> Outcome:
        return Outcome(explanation.values.sum(-1) / explanation.values.max())


@dataclass(frozen=True)
class GlobalNoise(Explainer):
    name: ClassVar[str] = "global_noise"
    stochastic: ClassVar[bool] = True

    def attribute(self, task: vd.Task, context: vd.models.Context) -> torch.Tensor:
        return torch.rand(len(task), task.space.n_features)


@dataclass(frozen=True)
class Vandal(Metric):
    name: ClassVar[str] = "vandal"

    def evaluate(self, task: vd.Task, explanation: vd.Explanation, context: vd.models.Context) -> Outcome:
        with torch.no_grad():
            next(task.model.parameters()).add_(1.0)
        return Outcome(explanation.values.sum(-1))


@dataclass(frozen=True)
class ReadsPadding(Metric):
    name: ClassVar[str] = "reads_padding"

    def evaluate(self, task: vd.Task, explanation: vd.Explanation, context: vd.models.Context) -> Outcome:
        return Outcome(explanation.values.mean(-1))


@pytest.mark.parametrize(
    ("thing", "modality", "message"),
    [
        (BatchDependent(), "table", "batches of 1"),
        (Vandal(), "table", "weights"),
        (ReadsPadding(), "series", "invalid features"),
    ],
)
def test_broken_metric_is_caught(thing: Metric, modality: str, message: str) -> None:
    with pytest.raises(testing.ContractError, match=message):
        testing.check_metric(thing, modality)


def test_broken_explainer_is_caught() -> None:
    with pytest.raises(testing.ContractError, match="global generator"):
        testing.check_explainer(GlobalNoise(), "table")
