"""Rectifiers made of an activation and a bent copy of it: `h + relu(-h)`, `leaky(h) - a h`, `sqrt(h * h)`."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from veridical.explainers.graph.operations import kind_of, tensors

_LINE, _RECTIFIED, _BENT, _SQUARE, _BESIDE = range(5)
_SCALING = frozenset({"neg", "negative", "positive", "pos", "clone", "contiguous", "to", "float", "double"})
_BENDING = frozenset({"leaky_relu", "prelu", "rrelu", "elu", "celu", "hardtanh", "softshrink", "hardshrink"})
_JOINING = frozenset({"stack", "cat", "concat", "concatenate"})
_ADDING = frozenset({"lerp", "sub", "stack"})


class Disguises:
    """What is known of an activation's copies: a multiple of it, or one that a rectifier has bent."""

    def __init__(self) -> None:
        self._known: WeakIdKeyDictionary = WeakIdKeyDictionary()  # tensor -> (whose copy, how it was bent)

    def _of(self, value: Tensor) -> tuple[object, int]:
        return self._known.setdefault(value, (object(), _LINE))

    def note(self, name: str, args: Any, kwargs: Any, value: Any, rectified: bool, carried: Any) -> None:
        """Remember what an operation made of an activation."""
        given = [v for v in tensors((args, kwargs)) if v in carried]
        if not given or not isinstance(value, Tensor):
            return
        origins, kind = [self._of(v) for v in given], kind_of(name, args, kwargs)
        origin, bent = origins[0]
        alike = all(other is origin for other, _ in origins)
        if rectified or name in _BENDING:
            self._known[value] = (origin, _RECTIFIED if rectified and bent in (_LINE, _RECTIFIED) else _BENT)
        elif name in _SCALING or (kind == "product" and len(given) == 1 and _number(args, given[0])):
            self._known[value] = (origin, bent)
        elif _squares(name, args) or (kind == "product" and len(given) == 2 and alike):
            self._known[value] = (origin, _SQUARE)
        elif kind == "sum" and len(given) == 2 and alike:
            self._known[value] = (origin, max(how for _, how in origins))
        elif name in _JOINING and any(_zero(v) for v in tensors((args, kwargs)) if v not in carried):
            self._known[value] = (origin, _BESIDE)

    def found(self, name: str, args: Any, kwargs: Any, carried: Any) -> str | None:
        """Why an operation may complete a rectifier; None if it does not."""
        given = [v for v in tensors((args, kwargs)) if v in carried]
        known = [self._known[v] for v in given if v in self._known]
        if name in ("sqrt", "pow") and any(how == _SQUARE for _, how in known):
            return "the root of a square is an absolute value, a part of rectifiers"
        if name in ("amax", "max") and any(how == _BESIDE for _, how in known):
            return "it takes the larger of an activation and 0"
        parts = {how for _, how in known if how in (_LINE, _RECTIFIED, _BENT)}
        if len(known) < 2 or len({id(origin) for origin, _ in known}) > 1 or len(known) < len(given):
            return None
        joins = kind_of(name, args, kwargs) == "sum" or name in _ADDING or "div" in name
        if joins and (len(parts) > 1 or parts == {_BENT}):
            return "it joins an activation and a bent copy of it, which may be a rectifier written by hand"
        return None


def _number(args: Any, signal: Tensor) -> bool:
    """Whether all that stands beside a signal is one number."""
    return all(v is signal or not isinstance(v, Tensor) or v.numel() == 1 for v in args)


def _squares(name: str, args: Any) -> bool:
    return name == "square" or (name == "pow" and args[1:] in ((2,), (2.0,)))


def _zero(value: Tensor) -> bool:
    return not value.requires_grad and not bool(value.any())
