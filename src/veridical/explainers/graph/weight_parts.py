"""What rules make of a layer's weights, such as their positive part: made once for each state of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

MOST = 2**22
"""Numbers of the largest weights whose parts are kept: of larger ones using costs more than making."""
_OF_WEIGHTS: WeakIdKeyDictionary = WeakIdKeyDictionary()


class Parts:
    """Parts of one layer's weights. Noise that is written into them shows in their version."""

    def __init__(self) -> None:
        self._known: dict[Any, tuple[Any, Sequence[Tensor | None], Any]] = {}

    def get(self, name: Any, of: Sequence[Tensor | None], make: Callable[[], Any]) -> Any:
        """What `make` made of these tensors, unless one of them was replaced or written to."""
        state = [None if t is None else (t.data_ptr(), t._version) for t in of]
        known = self._known.get(name)
        if known is None or known[0] != state:
            # the tensors are held, so that no other one can come to lie where they lay
            known = self._known[name] = (state, of, make())
        return known[2]


def kept_in(parts: Parts | None, name: Any, of: Sequence[Tensor | None], make: Callable[[], Any]) -> Any:
    """What `make` makes, from among the parts that are kept where some are."""
    return make() if parts is None else parts.get(name, of, make)


def parts_of(weight: Tensor | None, others: Sequence[Tensor | None]) -> Parts | None:
    """The parts of a parameter, for as long as it lives; None where they are made anew each time."""
    if weight is None or weight.numel() > MOST:
        return None
    if any(t is not None and t.is_inference() for t in (weight, *others)):
        return None  # whose versions nobody counts
    parts: Parts = _OF_WEIGHTS.setdefault(weight, Parts())
    return parts
