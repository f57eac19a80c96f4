"""Rectifiers that are written by hand: `h * (h > 0)`, `masked_fill`, `where`, `h[h < 0] = 0`, `maximum`."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

_KEEPING = frozenset({"float", "double", "half", "to", "type", "type_as", "bfloat16", "int", "long", "short"})
_TURNING = frozenset({"logical_not", "bitwise_not", "invert"})
_UP, _DOWN = frozenset({"gt", "ge"}), frozenset({"lt", "le"})


class Signs:
    """Which masks say where an activation is above 0 (or below it), and what is made of them."""

    def __init__(self) -> None:
        self.read_values = False
        """Whether a tensor was looked at, to see if it is 0 everywhere."""
        self._known: WeakIdKeyDictionary = (
            WeakIdKeyDictionary()
        )  # mask -> (activation, whether it is above 0)

    def note(self, name: str, args: Any, kwargs: Any, value: Any) -> None:
        """Remember a comparison with 0, and what only turns or converts one."""
        if not isinstance(value, Tensor) or not args:
            return
        if name in _UP | _DOWN and len(args) == 2:
            h, other = args
            above = name in _UP
            if not isinstance(h, Tensor) or (
                isinstance(other, Tensor) and not self._zero(other) and self._zero(h)
            ):
                h, other, above = other, h, not above
            if isinstance(h, Tensor) and self._zero(other):
                self._known[value] = (h, above)
        elif name in _KEEPING | _TURNING and self.sign(args[0]) is not None:
            h, above = self._known[args[0]]
            self._known[value] = (h, above != (name in _TURNING))

    def sign(self, mask: Any) -> tuple[Tensor, bool] | None:
        """The activation that a mask tells the sign of, and whether it tells where that is above 0."""
        return self._known.get(mask) if isinstance(mask, Tensor) else None

    def _of(self, mask: Any, h: Any, above: bool) -> bool:
        found = self.sign(mask)
        return found is not None and found[0] is h and found[1] == above

    def _zero(self, value: Any) -> bool:
        if not isinstance(value, Tensor):
            return isinstance(value, int | float) and value == 0
        zero = not value.requires_grad and not bool(value.any())
        self.read_values |= zero
        return zero

    def rectified(self, name: str, args: Any, kwargs: Any) -> Tensor | None:
        """The activation whose positive part an operation answers, or None if it does something else."""
        if name in ("mul", "imul", "rmul", "multiply") and len(args) == 2:
            for h, mask in (args, args[::-1]):
                if self._of(mask, h, True):
                    return _tensor(h)
        if (
            name == "masked_fill"
            and len(args) == 3
            and self._zero(args[2])
            and self._of(args[1], args[0], False)
        ):
            return _tensor(args[0])
        if name == "setitem" and self._zero(args[2]) and self._of(args[1], args[0], False):
            return _tensor(args[0])
        if name == "where" and len(args) == 3:
            mask, a, b = args
            if (self._zero(b) and self._of(mask, a, True)) or (self._zero(a) and self._of(mask, b, False)):
                return _tensor(a if self._zero(b) else b)
        both = (*args, *(kwargs[name] for name in ("input", "other") if name in kwargs))
        if name in ("maximum", "max", "fmax") and len(both) == 2 and all(isinstance(v, Tensor) for v in both):
            for h, other in (both, both[::-1]):
                if not other.requires_grad and self._zero(other):
                    return _tensor(h)
        low, high = _bounds(name, args, kwargs)
        return _tensor(args[0]) if high is None and low is not None and self._zero(low) else None


def _bounds(name: str, args: Any, kwargs: Any) -> tuple[Any, Any]:
    if name not in ("clamp", "clamp_min", "clip"):
        return None, None
    low = args[1] if len(args) > 1 else kwargs.get("min")
    return low, args[2] if len(args) > 2 else kwargs.get("max")


def _tensor(value: Any) -> Tensor | None:
    return value if isinstance(value, Tensor) else None
