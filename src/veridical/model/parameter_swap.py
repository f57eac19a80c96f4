"""Other tensors in the place of a module's parameters, for as long as a block lasts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

Weights = Mapping[str, Tensor]
Slot = tuple[nn.Module, str, str]
"""A module, the name under which it holds a parameter, and the parameter's name in the whole model."""


def slots(module: nn.Module, names: Iterable[str]) -> tuple[Slot, ...]:
    """Where the parameters of these names are held; tied ones sit in several slots."""
    wanted = set(names)
    found = {id(parameter): name for name, parameter in module.named_parameters() if name in wanted}
    return tuple(
        (owner, leaf, found[id(parameter)])
        for owner in module.modules()
        for leaf, parameter in owner._parameters.items()
        if parameter is not None and id(parameter) in found
    )


@contextmanager
def swapped(module: nn.Module, tensors: Weights, places: Sequence[Slot] | None = None) -> Iterator[None]:
    """Put tensors in the place of parameters and back, also when the body raises."""
    back = swap(slots(module, tensors) if places is None else places, tensors)
    try:
        yield
    finally:
        back()


def swap(places: Sequence[Slot], tensors: Weights) -> Callable[[], None]:
    """Put tensors in these places; the call that comes back puts all back as it was.

    Two cases need more than the parameter's own slot: a recurrent layer reads a flat list made when it was
    built; the older weight and spectral norm leave the weight they computed as a plain attribute behind.
    """
    kept: list[tuple[dict[str, Any], str, Any]] = []
    flat: list[tuple[nn.RNNBase, list[Any], list[Any]]] = []
    left_behind: list[tuple[nn.Module, str, Tensor]] = []

    def back() -> None:
        for table, leaf, parameter in kept:
            table[leaf] = parameter
        for owner, weights, refs in flat:
            owner._flat_weights, owner._flat_weight_refs = weights, refs
        for holder, name, value in left_behind:
            holder.__dict__[name] = value

    try:
        for owner, leaf, name in places:
            table: dict[str, Any] = owner._parameters
            kept.append((table, leaf, table[leaf]))
            table[leaf] = tensors[name]
        for owner in {owner for owner, _, _ in places}:
            if isinstance(owner, nn.RNNBase):
                flat.append((owner, owner._flat_weights, owner._flat_weight_refs))
                owner._flat_weights = [getattr(owner, leaf, None) for leaf in owner._flat_weights_names]
            if owner._forward_pre_hooks:
                attributes = [(n, v) for n, v in owner.__dict__.items() if isinstance(v, Tensor)]
                left_behind += [(owner, n, v) for n, v in attributes]
    except BaseException:
        back()
        raise
    return back
