"""Which model it is and where its tensors lie, by what can be seen of it in some microseconds."""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_modules

PLAIN = frozenset({bool, int, float, str, type(None)})
"""Kinds of values by which a module may be told what to do, and which can be compared."""
LISTS = (list, tuple, dict)


def parts_and_places(model: nn.Module) -> tuple[list[nn.Module], tuple[Hashable, ...]] | None:
    """The parts of a model, and which they are and where its tensors lie; None where that does not tell all.

    A model under other weights is known by these: the next one may have them in the same place. Plain values
    that a part was given belong to what it is. A function does not show what it uses; compiled code, and a
    model that somebody watches by hooks, must run itself.
    """
    try:
        return None if torch_modules._has_any_global_hook() else _walked(model)
    except RuntimeError:
        return None  # a sparse tensor lies in several places, and tells of none


def _walked(model: nn.Module) -> tuple[list[nn.Module], tuple[Hashable, ...]] | None:
    parts: list[nn.Module] = []
    places: list[Hashable] = []
    ahead, seen = [model], {id(model)}
    while ahead:
        part = ahead.pop()
        own = part.__dict__
        cls: type = type(part)
        kind = _kind(cls)
        if (
            kind == "closed"
            or part._compiled_call_impl is not None
            or "_orig_mod" in own["_modules"]
            or "forward" in own
            or own["_forward_hooks"]
            or own["_forward_pre_hooks"]
            or own["_backward_hooks"]
            or own["_backward_pre_hooks"]
        ):
            return None
        if kind == "tensors":
            # by name, too: in this place the next one may have what stands for another weight
            for name, value in own["tensors"].items():
                places += name, value.data_ptr(), value.stride()
        else:
            parts.append(part)
            places += id(part), own.get("training")
            if kind == "free":
                for value in own.values():
                    if type(value) in PLAIN:
                        places.append(value)
                    elif isinstance(value, Tensor):
                        places += value.data_ptr(), value.stride()
        for table in (own["_parameters"], own["_buffers"]):
            for value in table.values():
                if value is not None:
                    places += value.data_ptr(), value.stride()
        for child in own["_modules"].values():
            if id(child) in seen:
                places.append(id(child))
            elif child is not None:
                seen.add(id(child))
                ahead.append(child)
    return parts, tuple(places)


def tells_all(part: nn.Module, device: torch.device) -> bool:
    """Whether a part can be known by the places of its tensors: all on one device, and none in a list.

    Nobody would notice another tensor in a list; of another device's work a recording has no part, and from
    a CPU it takes numbers, not places.
    """
    cls: type = type(part)
    own = part.__dict__
    single = (*own["_parameters"].values(), *own["_buffers"].values(), *own.values())
    if any(isinstance(each, Tensor) and each.device != device for each in single):
        return False
    if _kind(cls) != "free":
        return True
    lists = (own[name] for name in own.keys() - {"_parameters", "_buffers"} if type(own[name]) in LISTS)
    listed = (each for value in lists for each in (value.values() if isinstance(value, dict) else value))
    return not any(isinstance(each, Tensor) for each in listed)


@lru_cache(maxsize=256)
def _kind(cls: type) -> Literal["closed", "tensors", "torch", "free"]:
    """What tells all of the parts of a class: nothing, their tensors, what torch lists, that and the rest."""
    if issubclass(cls, torch.jit.ScriptModule | nn.DataParallel) or getattr(cls, "hides_what_it_uses", False):
        return "closed"
    if getattr(cls, "is_its_tensors", False):
        return "tensors"
    return "torch" if cls.__module__.startswith("torch.nn.") else "free"
