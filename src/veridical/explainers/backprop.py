"""Explainers that change what a rectifier passes back: guided backpropagation and deconvolution."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from veridical.explainers.base import Explainer, register
from veridical.explainers.gradients import gradient
from veridical.explainers.hooks import RECTIFIERS, hooked, why_not_rectifiers
from veridical.random.keyed import Key
from veridical.values.task import Task

Rule = Callable[[Tensor, Tensor], Tensor]


def rectified_gradient(task: Task, rule: Rule) -> Tensor:
    """The gradient where each rectifier passes back rule(its plain gradient, what came from above)."""

    def after(_layer: nn.Module, _inputs: Any, output: Tensor) -> None:
        # the rule hangs on the operation in this one graph and goes with it; in-place layers work as well
        if output.grad_fn is not None:
            output.grad_fn.register_hook(lambda plain, above: (rule(plain[0], above[0]),))

    with hooked(task.predictor.model, RECTIFIERS, after):
        return gradient(task)


@dataclass(frozen=True)
class _Rectified(Explainer):
    needs: ClassVar[frozenset[str]] = frozenset({"gradient"})

    def why_not(self, task: Task) -> str | None:
        return super().why_not(task) or why_not_rectifiers(task)


@register
@dataclass(frozen=True)
class GuidedBackprop(_Rectified):
    """The gradient that only positive evidence may take: each ReLU passes max(0, g) where its input is > 0.

    Other non-linearities pass their plain gradient. Every ReLU must be a layer that runs once.
    """

    name: ClassVar[str] = "guided_backprop"
    summary: ClassVar[str] = "gradient through positive paths of active ReLUs"
    paper: ClassVar[str] = "Springenberg et al. 2015"

    def attribute(self, task: Task, key: Key) -> Tensor:
        return rectified_gradient(task, lambda plain, above: plain.clamp(min=0))


@register
@dataclass(frozen=True)
class Deconvolution(_Rectified):
    """The gradient where each ReLU passes max(0, g) whatever its input was.

    Other non-linearities pass their plain gradient. Every ReLU must be a layer that runs once.
    """

    name: ClassVar[str] = "deconvolution"
    summary: ClassVar[str] = "gradient with ReLUs applied on the way back"
    paper: ClassVar[str] = "Zeiler and Fergus 2014"

    def attribute(self, task: Task, key: Key) -> Tensor:
        return rectified_gradient(task, lambda plain, above: above.clamp(min=0))
