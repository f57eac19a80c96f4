"""Explainers that change what a rectifier passes back: guided backpropagation and deconvolution.

A rectifier is `relu`, `relu6` (layers or functions) or a clamp from 0. One that is written by hand, such as
`h * (h > 0)` or `torch.maximum(h, zero)`, is refused by name. Other non-linearities
pass their plain gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from veridical.errors import NotApplicableError
from veridical.explainers.base import register
from veridical.explainers.trace.operations import bound, kind_of
from veridical.explainers.trace.tracer import Tracer, TracingExplainer
from veridical.values.task import Task

Rule = Callable[[Tensor, Tensor], Tensor]
"""From a rectifier's plain gradient and what came from above to what it passes back."""
_BY_HAND = frozenset(
    """
    abs absolute sign sgn copysign hypot heaviside minimum maximum fmin fmax threshold rnn_relu rnn_relu_cell
    """.split()
)
"""Operations that a rectifier may be made of, or hide in: (h + |h|) / 2, say."""
_PLACES = frozenset({"getitem", "gather", "index_select", "take_along_dim"})


class Rectifiers(Tracer):
    """The gradient, except that each rectifier passes back what `change` says."""

    method = "a rule for rectifiers"

    def __init__(self, x: Tensor, change: Rule) -> None:
        super().__init__(x)
        self.change = change
        self.seen = 0

    def rule(self, name: str, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if name in ("relu", "relu6") or bound(name, args, kwargs, "low") == 0:
            return self._rectified(func(*args, **kwargs))
        if name in _BY_HAND or bound(name, args, kwargs, "high") == 0:
            raise self._refused(name, "it may be a part of a rectifier that is written by hand")
        chosen = any(held.choice for held in self.all_detached(args, kwargs))
        if chosen and kind_of(name) != "compare" and name not in _PLACES:
            raise self._refused(name, "it lets through a part that the activations choose")
        return func(*args, **kwargs)

    def _rectified(self, value: Tensor) -> Tensor:
        self.seen += 1
        change = self.change
        if value.grad_fn is not None:
            # the rule hangs on the operation in this one graph and goes with it
            value.grad_fn.register_hook(
                # nothing comes from above where what follows is detached
                lambda plain, above: None if above[0] is None else (change(plain[0], above[0]), *plain[1:])
            )
        return value

    def _refused(self, name: str, why: str) -> Exception:
        return self.refused(f"operation '{name}'", f"{why}; write it as nn.ReLU() or F.relu")


@dataclass(frozen=True)
class _Rectified(TracingExplainer):
    """The gradient with another rule for rectifiers; all else as it is."""

    def passed(self, plain: Tensor, above: Tensor) -> Tensor:
        """What a rectifier passes back, given its plain gradient and what came from above."""
        raise NotApplicableError(f"explainer '{self.name}' does not say what a rectifier passes back")

    def tracer(self, task: Task, x: Tensor) -> Rectifiers:
        return Rectifiers(x, self.passed)

    def check_run(self, tracer: Tracer) -> None:
        if isinstance(tracer, Rectifiers) and not tracer.seen:
            raise NotApplicableError("the model has no ReLU or ReLU6, so the map would be the plain gradient")

    def _tells_outputs(self, task: Task) -> bool:
        return self.traced_task(task) is task  # of prompts another model is evaluated


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
