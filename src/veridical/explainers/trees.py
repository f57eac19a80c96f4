"""TreeSHAP: exact Shapley values of tree ensembles, computed by the shap package."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from veridical.core.allowed import Count
from veridical.core.facts import fact
from veridical.core.key import Key
from veridical.errors import NotApplicableError, missing_extra
from veridical.explainers.base import Explainer, register
from veridical.explainers.diagnostics import difference_from_baselines
from veridical.models.context import Context
from veridical.models.estimators import Logits
from veridical.values.task import Task

SEVERAL_AS_ONE = ("catboost", "lightgbm.basic")
"""Where models live whose classes shap confuses."""


@register
@dataclass(frozen=True)
class TreeShap(Explainer):
    """Exact interventional Shapley values of a tree, forest or boosted ensemble over reference rows.

    They are Shapley values of what the ensemble itself adds up: the margin of boosted trees, the probability
    of forests and single trees (the provenance says which), whatever scale the task explains. Needs the
    extra `shap`; it reads the trees and evaluates no rows.
    """

    background: Count = 100
    """The most reference rows, from the first on, that stand for removed features."""
    name: ClassVar[str] = "tree_shap"
    summary: ClassVar[str] = "exact Shapley values of tree ensembles, by the shap package"
    paper: ClassVar[str] = "Lundberg et al. 2020"
    modalities: ClassVar[frozenset[str]] = frozenset({"table"})
    needs: ClassVar[frozenset[str]] = frozenset({"train"})
    completeness: ClassVar[str] = "values sum to the ensemble's own output less its mean over the background"

    def inapplicable_reason(self, task: Task) -> str | None:
        if importlib.util.find_spec("shap") is None:
            return str(missing_extra("shap", "shap"))
        reason = super().inapplicable_reason(task)
        if reason is not None:
            return reason
        if task.space.kind != "column" or not _all_numbers(task):
            return "it reads trees over the plain columns of a table of numbers"
        if _estimator(task) is None:
            return (
                "it reads the trees of a scikit-learn, XGBoost, LightGBM or CatBoost model, and this is none"
            )
        if task.n_outputs > 2 and type(_estimator(task)).__module__.startswith(SEVERAL_AS_ONE):
            # shap would give wrong values or end the whole process
            return (
                "the package shap reads CatBoost models and LightGBM Boosters of several classes as if they "
                "had one (an LGBMClassifier is read rightly)"
            )
        try:
            _explainer(task, self.background)
        except Exception as error:  # the package has many errors for it that a model has no trees it knows
            return f"the package shap finds no trees it can read: {str(error).splitlines()[0][:120]}"
        return None

    def _stated(self, task: Task) -> dict[str, Any]:
        return {"scale": "output of the trees" if _of_probability(task) else "margin of the ensemble"}

    def rows_per_sample(self, task: Task) -> int:
        return 0

    def _expected_sum(self, task: Task, key: Key) -> Tensor:
        # of the model and not of shap, whose own mean leaves out the base scores of some ensembles
        background = _background(task, self.background)
        if not _of_probability(task):
            return difference_from_baselines(task, lambda _: background)
        own, below = (
            torch.as_tensor(np.asarray(_estimator(task).predict_proba(_decoded(task, rows)))).double()
            for rows in (task.inputs, background)
        )
        return (own - below.mean(0)).gather(1, task.targets.cpu()[:, None])[:, 0].to(task.device)

    def attribute(self, task: Task, context: Context) -> Tensor:
        explainer = _explainer(task, self.background)
        # shap checks sums itself to 1e-2 and stops; the completeness check measures them
        found = np.asarray(explainer.shap_values(task.inputs.cpu().numpy(), check_additivity=False))
        values = torch.as_tensor(found, dtype=torch.float64)
        if values.dim() == 3:
            at = task.targets.cpu().view(-1, 1, 1).expand(-1, values.shape[1], 1)
            return values.gather(2, at)[..., 0].to(task.outputs)
        return (values * _side(task)[:, None]).to(task.outputs)


def _estimator(task: Task) -> Any:
    return getattr(task.predictor.model, "estimator", None)


def _of_probability(task: Task) -> bool:
    """Whether the trees add up to probabilities: those of forests do, boosted ones add up to a margin."""
    return isinstance(getattr(task.predictor.model, "function", None), Logits)


def _all_numbers(task: Task) -> bool:
    """Whether every column is numbers, or true and false, which trees read as 0 and 1."""
    codec = getattr(task.predictor.model, "codec", None)
    return codec is None or all(levels in (None, (False, True)) for levels in codec.categories)


def _decoded(task: Task, rows: Tensor) -> Any:
    codec = getattr(task.predictor.model, "codec", None)
    return rows.cpu().numpy() if codec is None else codec.decode(rows)


def _background(task: Task, count: int) -> Tensor:
    assert task.reference.train is not None
    return task.reference.train[:count]


def _explainer(task: Task, background: int) -> Any:
    if _estimator(task) is None:
        raise NotApplicableError(
            "tree_shap reads the trees of the task's own estimator, which this model wraps"
        )
    return _tree_explainer(task.reference, background)


@fact
def _tree_explainer(task: Task, background: int) -> Any:
    import shap

    return shap.TreeExplainer(_estimator(task), _background(task, background).cpu().numpy())


def _side(task: Task) -> Tensor:
    """1 where one column of values explains the target, -1 for the other side of a binary head."""
    if task.head != "binary":
        return torch.ones(len(task), dtype=torch.float64)
    return task.targets.cpu().double() * 2 - 1
