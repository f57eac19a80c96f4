"""Rectifiers that pass back something else than their gradient: guided backpropagation and deconvolution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from veridical.explainers.graph.disguises import Disguises
from veridical.explainers.graph.follow import Follower
from veridical.explainers.graph.operations import bound, kind_of, tensors

Rule = Callable[[Tensor, Tensor], Tensor]
"""From a rectifier's plain gradient and what came from above to what it passes back."""

RECTIFIERS = frozenset({"relu", "relu6"})
_DISGUISES = frozenset(
    """
    abs absolute sign sgn copysign hypot heaviside minimum maximum fmin fmax threshold
    ceil floor round trunc fix
    """.split()
)
"""Operations that a rectifier may be made of without being seen as one: (h + |h|) / 2, say."""
_INSIDE = frozenset({"rnn_relu", "rnn_relu_cell"})
_READERS = frozenset({"tolist", "numpy", "array"})
_PLACES = frozenset({"getitem", "gather", "index_select", "take_along_dim"})


class Rectifiers(Follower):
    """The gradient, except that each rectifier passes back what `change` says."""

    method = "a rule for rectifiers"

    def __init__(self, x: Tensor, change: Rule) -> None:
        super().__init__(x)
        self.change = change
        self.seen = 0
        self.disguises = Disguises()

    def rule(self, name: str, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        why = self.disguises.found(name, args, kwargs, self.carried)
        if why is not None:
            raise self._hidden(name, why)
        rectified = name in RECTIFIERS or bound(name, args, kwargs, "low") == 0
        rectified = rectified or _leaks_nothing(name, args, kwargs)
        value = self._done(name, func, args, kwargs, rectified)
        self.disguises.note(name, args, kwargs, value, rectified, self.carried)
        return value

    def _done(self, name: str, func: Callable[..., Any], args: Any, kwargs: Any, rectified: bool) -> Any:
        if rectified:
            return self.do(_rectified, self, func, args, kwargs)
        self._look_for_readers(name, args)
        if name == "prelu" and bool((args[1] == 0).any()):
            raise self._hidden(name, "below 0 its slope is 0 in some channels, which makes it a ReLU there")
        if name in _PLACES and any(self.signs.sign(v) is not None for v in tensors((args[1:], kwargs))):
            raise self._hidden(name, "it lets through a part that the sign of an activation chooses")
        if name in _DISGUISES or name in _INSIDE or bound(name, args, kwargs, "high") == 0:
            raise self._hidden(name, "it may be a part of a rectifier that is written by hand")
        if (
            kind_of(name) != "compare"
            and name not in _PLACES
            and any(h.choice for h in self.holds(args, kwargs))
        ):
            raise self._hidden(name, "it lets through a part that the activations choose")
        return self.do(func, *args, **kwargs)

    def rule_of_held(self, name: str, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self._look_for_readers(name, args)
        return super().rule_of_held(name, func, args, kwargs)

    def _look_for_readers(self, name: str, args: Any) -> None:
        """Refuse what makes plain numbers of many activations: a rectifier may come back from there."""
        if name in _READERS and args[0].numel() > 1:
            raise self._hidden(name, "it reads activations, and what is made of them comes from nowhere")

    def _hidden(self, name: str, why: str) -> Exception:
        return self.refused(f"operation '{name}'", f"{why}; write it as nn.ReLU() or F.relu")


def _rectified(run: Rectifiers, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    value, change = func(*args, **kwargs), run.change
    run.seen += 1
    if value.grad_fn is not None:
        # the rule hangs on the operation in this one graph and goes with it
        value.grad_fn.register_hook(
            # nothing comes from above where what follows is detached
            lambda plain, above: None if above[0] is None else (change(plain[0], above[0]), *plain[1:])
        )
    return value


def _leaks_nothing(name: str, args: Any, kwargs: Any) -> bool:
    named, default = _LEAKS.get(name, ("", 1))
    slope = args[1] if len(args) > 1 else kwargs.get(named, default)
    if name == "rrelu" and (args[2] if len(args) > 2 else kwargs.get("upper", 1)) != 0:
        return False
    return name in _LEAKS and isinstance(slope, int | float) and slope == 0


_LEAKS = {"leaky_relu": ("negative_slope", 0.01), "elu": ("alpha", 1.0), "rrelu": ("lower", 0.125)}
"""Functions that are a ReLU where a number is 0: by what name they take it, and what it is otherwise."""
