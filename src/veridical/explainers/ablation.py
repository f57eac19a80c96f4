"""Feature ablation: how much the output falls when each feature is removed alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from veridical.core.key import Key
from veridical.explainers.base import register
from veridical.explainers.coalitions import MaskingExplainer
from veridical.perturb.probe import probe
from veridical.perturb.rules import Groups
from veridical.values.task import Task


@register
@dataclass(frozen=True)
class FeatureAblation(MaskingExplainer):
    """The fall of the explained output when one feature is removed: phi_i = y(x) - y(x without i).

    On an additive model with a constant fill this is the feature's own term. (Leave-one-out, as in
    Zeiler and Fergus 2014 with a window of one feature.)
    """

    name: ClassVar[str] = "feature_ablation"
    summary: ClassVar[str] = "fall of the output when each feature is removed alone"
    paper: ClassVar[str] = "Zeiler and Fergus 2014"

    def masks(self, task: Task) -> int:
        return task.space.n_features

    def attribute(self, task: Task, key: Key) -> Tensor:
        rule = Groups(task.space.n_features, task.device)
        answers = probe(task, rule, response="logit", key=self.fill_key(key), with_clean=True)
        return (answers[:, :1] - answers[:, 1:]).to(task.outputs.dtype)
