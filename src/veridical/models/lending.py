"""What code that is not ours may change in a module, remembered and put back.

Besides the tables of a module (parameters, buffers, hooks, attributes) that is whatever its attributes reach:
lists, dictionaries, sets, arrays, configuration objects, tensors, and modules that torch does not list.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor, nn

from veridical.models.fingerprint import DEEPEST, INSIDE, LONGEST, OPAQUE, PLAIN, modules

LEFT_ALONE = (*PLAIN, *OPAQUE, float, np.generic)


class Remembered:
    """The state of a module's copy at one time; a long list or array is taken as nobody's to change."""

    def __init__(self, module: nn.Module) -> None:
        self._tables: list[tuple[dict[Any, Any], dict[Any, Any]]] = []
        self._lists: list[tuple[list[Any], list[Any]]] = []
        self._sets: list[tuple[set[Any], set[Any]]] = []
        self._arrays: list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]] = []
        self._tensors: list[tuple[Tensor, Tensor]] = []
        self._graded: list[tuple[Tensor, Tensor, bool]] = []
        self._seen: set[int] = set()
        listed = list(modules(module))
        self._seen.update(map(id, listed))
        for each in listed:
            self._module(each, listed=True)

    def _module(self, module: nn.Module, listed: bool) -> None:
        own = module.__dict__
        self._tables.append((own, own.copy()))
        for name, value in own.items():
            if name == "_parameters":
                held = [p for p in value.values() if p is not None]
                self._graded += [(p, p.data, p.requires_grad) for p in held]
                if not listed:
                    self._tensors += [(p, p.detach().clone()) for p in held]
            if isinstance(value, dict) and name.startswith("_"):
                self._tables.append((value, value.copy()))
            elif not isinstance(value, LEFT_ALONE):
                self._value(value, 0)

    def _value(self, value: Any, depth: int) -> None:
        if isinstance(value, LEFT_ALONE) or id(value) in self._seen or depth > DEEPEST:
            return
        self._seen.add(id(value))
        if isinstance(value, Tensor):
            if value.grad_fn is None:
                self._tensors.append((value, value.detach().clone()))
        elif isinstance(value, np.ndarray):
            if value.size <= LONGEST:
                self._arrays.append((value, value.copy()))
        elif isinstance(value, nn.Module):
            self._module(value, listed=False)
            for child in value._modules.values():
                self._value(child, depth)
        elif isinstance(value, dict):
            self._tables.append((value, value.copy()))
            self._each(value.values(), depth)
        elif isinstance(value, list):
            self._lists.append((value, value.copy()))
            self._each(value, depth)
        elif isinstance(value, set):
            self._sets.append((value, value.copy()))
        elif isinstance(value, tuple):
            self._each(value, depth)
        elif hasattr(value, "__dict__") and not type(value).__module__.startswith(INSIDE):
            self._value(vars(value), depth)

    def _each(self, values: Any, depth: int) -> None:
        if len(values) <= LONGEST:
            for value in values:
                self._value(value, depth + 1)

    def put_back(self) -> None:
        """Everything as it was, in the very same objects: torch's handles of hooks know their tables."""
        for table, was in self._tables:
            table.clear()
            table.update(was)
        for items, before in self._lists:
            items[:] = before
        for members, were in self._sets:
            members.clear()
            members.update(were)
        for array, numbers in self._arrays:
            if array.flags.writeable:
                array[...] = numbers
        for parameter, data, requires in self._graded:
            parameter.grad = None
            if parameter.dtype != data.dtype or parameter.data_ptr() != data.data_ptr():
                parameter.data = data
            parameter.requires_grad_(requires)
        for tensor, value in self._tensors:
            tensor.detach().copy_(value)
