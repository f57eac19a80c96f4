"""Rectifiers made of an activation and a bent copy of it: `h + relu(-h)`, `leaky(h) - a h`, `sqrt(h * h)`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from veridical.explainers.graph.operations import kind_of, tensors

_SCALING = {"neg": -1.0, "negative": -1.0, "clone": 1.0, "contiguous": 1.0}
_JOINING = frozenset({"stack", "cat", "concat", "concatenate"})
_LARGEST = frozenset({"amax", "max", "sort", "msort", "topk", "kthvalue", "cummax", "aminmax"})
_NOTHING = 1e-6


@dataclass(frozen=True)
class _Copy:
    """What was made of an activation, element by element: its slopes where that is above 0 and below."""

    origin: object
    up: float = 1.0
    down: float = 1.0
    square: bool = False

    def times(self, by: float) -> _Copy:
        return _Copy(self.origin, self.up * by, self.down * by, self.square)

    def bent(self, leak: float) -> _Copy:
        """Behind a rectifier: what falls there is leaked."""
        up = self.up * (1 if self.up > 0 else leak)
        return _Copy(self.origin, up, self.down * (1 if self.down < 0 else leak))


class Disguises:
    """What is known of the copies of activations, as a model runs."""

    def __init__(self) -> None:
        self._known: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._beside_zero: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def _of(self, value: Tensor) -> _Copy:
        found: _Copy = self._known.setdefault(value, _Copy(object()))
        return found

    def note(self, name: str, args: Any, kwargs: Any, value: Any, rectified: bool, carried: Any) -> None:
        """Remember what an operation made of an activation."""
        given = [v for v in tensors((args, kwargs)) if v in carried]
        if not given or not isinstance(value, Tensor):
            return
        one, kind = self._of(given[0]), kind_of(name, args, kwargs)
        factor, leak = _factor(name, kind, args, given), _leak(name, args, kwargs)
        if rectified or leak is not None:
            self._known[value] = one.bent(0.0 if rectified or leak is None else leak)
        elif factor is not None:
            self._known[value] = one.times(factor)
        elif name == "square" or (name == "pow" and args[1:] in ((2,), (2.0,))):
            self._known[value] = _Copy(one.origin, square=True)
        elif len(given) == 2 and self._of(given[1]).origin is one.origin:
            if kind == "product":
                self._known[value] = _Copy(one.origin, square="div" not in name)
            elif kind == "sum":
                self._known[value] = self._sum(name, args, kwargs, given)
        elif name in _JOINING and any(_zero(v) for v in tensors((args, kwargs)) if v not in carried):
            self._beside_zero[value] = True

    def _sum(self, name: str, args: Any, kwargs: Any, given: list[Tensor]) -> _Copy:
        first, second = (self._of(v) for v in given)
        sign = (-1.0 if "sub" in name else 1.0) * kwargs.get("alpha", 1)
        first, second = (first, second) if name != "rsub" else (second, first)
        return _Copy(first.origin, first.up + sign * second.up, first.down + sign * second.down)

    def found(self, name: str, args: Any, kwargs: Any, carried: Any) -> str | None:
        """Why an operation completes a rectifier; None if it does not."""
        given = [v for v in tensors((args, kwargs)) if v in carried]
        known = [self._known[v] for v in given if v in self._known]
        if name in _LARGEST and any(v in self._beside_zero for v in given):
            return "it takes the larger of an activation and 0"
        if (name == "sqrt" or (name == "pow" and args[1:] == (0.5,))) and any(one.square for one in known):
            return "the root of a square is an absolute value, a part of rectifiers"
        if len(known) != 2 or len(given) != 2 or known[0].origin is not known[1].origin:
            return None
        whole = known[0]
        if kind_of(name, args, kwargs) == "sum":
            whole = self._sum(name, args, kwargs, given)
        elif name == "stack":
            # what is stacked may be summed
            whole = _Copy(whole.origin, whole.up + known[1].up, whole.down + known[1].down)
        elif "div" not in name:
            return None
        flat = [abs(slope) < _NOTHING for slope in (whole.up, whole.down)]
        side = [one.up if flat[0] else one.down for one in known]
        if flat[0] != flat[1] and any(abs(slope) > _NOTHING for slope in side):
            return "it makes a rectifier of an activation and a bent copy of it"
        return None


def _factor(name: str, kind: str, args: Any, given: list[Tensor]) -> float | None:
    """The number that an operation multiplies by; None if it does something else."""
    if name in _SCALING or kind != "product" or len(given) != 1 or len(args) != 2:
        return _SCALING.get(name)
    number = args[0] if args[1] is given[0] else args[1]
    if not isinstance(number, int | float) or number == 0 or name.startswith(("rdiv", "rtrue")):
        return None
    return 1 / number if "div" in name else float(number)


def _leak(name: str, args: Any, kwargs: Any) -> float | None:
    """The slope of a leaking rectifier below 0."""
    slope = args[1] if len(args) > 1 else kwargs.get("negative_slope", 0.01)
    return float(slope) if name == "leaky_relu" and isinstance(slope, int | float) else None


def _zero(value: Tensor) -> bool:
    return not value.requires_grad and not bool(value.any())
