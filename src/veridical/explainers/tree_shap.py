"""TreeSHAP: exact Shapley values of tree ensembles, computed by the shap package."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from veridical.allowed import Count
from veridical.errors import missing_extra
from veridical.explainers.base import Explainer, register
from veridical.random.keyed import Key
from veridical.values.task import Task


@register
@dataclass(frozen=True)
class TreeShap(Explainer):
    """Exact interventional Shapley values of a tree, forest or boosted ensemble over reference rows.

    They are Shapley values of what the ensemble itself adds up: the margin of boosted trees, the probability
    of forests and single trees (the provenance says which), whatever scale the task explains. Needs the
    extra `shap`; it reads the trees and asks the model no rows.
    """

    background: Count = 100
    """The most reference rows, from the first on, that stand for removed features."""
    name: ClassVar[str] = "tree_shap"
    summary: ClassVar[str] = "exact Shapley values of tree ensembles, by the shap package"
    paper: ClassVar[str] = "Lundberg et al. 2020"
    modalities: ClassVar[frozenset[str]] = frozenset({"table"})
    needs: ClassVar[frozenset[str]] = frozenset({"train"})
    law: ClassVar[str] = "values sum to the ensemble's own output less its mean over the background"

    def why_not(self, task: Task) -> str | None:
        if importlib.util.find_spec("shap") is None:
            return str(missing_extra("shap", "shap"))
        reason = super().why_not(task)
        if reason is not None:
            return reason
        if task.space.kind != "column" or getattr(task.predictor.model, "codec", None) is not None:
            return "it reads trees over the plain columns of a table of numbers"
        if _estimator(task) is None:
            return (
                "it reads the trees of a scikit-learn, XGBoost or LightGBM estimator, and this model is none"
            )
        try:
            _explainer(task, self.background)
        except Exception as error:  # the package says in many ways that a model has no trees it knows
            return f"the package shap finds no trees it can read: {str(error).splitlines()[0][:120]}"
        return None

    def stated(self, task: Task) -> dict[str, Any]:
        margin = hasattr(_estimator(task), "decision_function")
        return {"scale": "margin of the ensemble" if margin else "output of the trees"}

    def rows_per_sample(self, task: Task) -> int:
        return 0

    def promised(self, task: Task, key: Key) -> Tensor:
        explainer = _explainer(task, self.background)
        estimator = _estimator(task)
        rows = task.inputs.cpu().numpy()
        if hasattr(estimator, "decision_function"):
            raw = np.asarray(estimator.decision_function(rows))
        elif hasattr(estimator, "predict_proba"):
            raw = np.asarray(estimator.predict_proba(rows))
        else:
            raw = np.asarray(estimator.predict(rows))
        base = np.atleast_1d(np.asarray(explainer.expected_value, dtype=np.float64))
        return _of_target(
            torch.as_tensor(raw - base.reshape(1, -1) if raw.ndim > 1 else raw - base[-1]), task
        )

    def attribute(self, task: Task, key: Key) -> Tensor:
        explainer = _explainer(task, self.background)
        # shap checks sums itself to 1e-2 and stops; our own law measures them
        found = np.asarray(explainer.shap_values(task.inputs.cpu().numpy(), check_additivity=False))
        values = torch.as_tensor(found, dtype=torch.float64)
        if values.dim() == 3:
            at = task.targets.cpu().view(-1, 1, 1).expand(-1, values.shape[1], 1)
            return values.gather(2, at)[..., 0].to(task.outputs)
        return (values * _side(task)[:, None]).to(task.outputs)


def _estimator(task: Task) -> Any:
    return getattr(task.predictor.model, "estimator", None)


def _explainer(task: Task, background: int) -> Any:
    import shap

    def make() -> Any:
        assert task.reference.train is not None
        rows = task.reference.train[:background].cpu().numpy()
        return shap.TreeExplainer(_estimator(task), rows)

    return task.reference.cached(f"trees over {background} rows", make)


def _side(task: Task) -> Tensor:
    """1 where one column of values explains the target, -1 for the other side of a binary head."""
    if task.head != "binary":
        return torch.ones(len(task), dtype=torch.float64)
    return task.targets.cpu().double() * 2 - 1


def _of_target(values: Tensor, task: Task) -> Tensor:
    values = values.double()
    if values.dim() == 2:
        return values.gather(1, task.targets.cpu()[:, None])[:, 0].to(task.device)
    return (values * _side(task)).to(task.device)
