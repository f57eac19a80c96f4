"""Explainers that change what a rectifier passes back: guided backpropagation and deconvolution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from veridical.core.key import Key
from veridical.errors import NotApplicableError
from veridical.explainers.base import register
from veridical.explainers.gradients import gradient
from veridical.explainers.graph.explainer import FollowingExplainer
from veridical.explainers.graph.followed import Followed
from veridical.explainers.graph.rectifiers import Rectifiers
from veridical.values.task import Task


@dataclass(frozen=True)
class _Rectified(FollowingExplainer):
    """The gradient with another rule for rectifiers, however they are written; all else as it is."""

    def passed(self, plain: Tensor, above: Tensor) -> Tensor:
        """What a rectifier passes back, given its plain gradient and what came from above."""
        raise NotApplicableError(f"explainer '{self.name}' does not say what a rectifier passes back")

    def follower(
        self, task: Task, model: Followed, x: Tensor, side: tuple[Any, ...], named: dict[str, Any]
    ) -> Rectifiers:
        follower = Rectifiers(x, self.passed)
        model.kept["follower"] = follower
        return follower

    def tried(self, model: Followed) -> None:
        if not model.kept["follower"].seen:
            raise NotApplicableError("the model has no ReLU or ReLU6, so the map would be the plain gradient")

    def tells_outputs(self, task: Task) -> bool:
        return self.asked(task) is task  # of prompts another model is asked

    def attribute(self, task: Task, key: Key) -> Tensor:
        return gradient(task, only=True)


@register
@dataclass(frozen=True)
class GuidedBackprop(_Rectified):
    """The gradient that only positive evidence may take: each ReLU passes max(0, g) where its input is > 0.

    Other non-linearities pass their plain gradient.
    """

    name: ClassVar[str] = "guided_backprop"
    summary: ClassVar[str] = "gradient through positive paths of active ReLUs"
    paper: ClassVar[str] = "Springenberg et al. 2015"

    def passed(self, plain: Tensor, above: Tensor) -> Tensor:
        return plain.clamp(min=0)


@register
@dataclass(frozen=True)
class Deconvolution(_Rectified):
    """The gradient where each ReLU passes max(0, g) whatever its input was.

    Other non-linearities pass their plain gradient.
    """

    name: ClassVar[str] = "deconvolution"
    summary: ClassVar[str] = "gradient with ReLUs applied on the way back"
    paper: ClassVar[str] = "Zeiler and Fergus 2014"

    def passed(self, plain: Tensor, above: Tensor) -> Tensor:
        return above.clamp(min=0)
