"""A recorder for a CPU that is like a CUDA graph: it reads by address, and keeps nothing alive for that."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map

ANSWER = tuple[Tensor, ...]


@dataclass(frozen=True, eq=False)
class Place:
    """Where a tensor lay that the pass did not make."""

    address: int
    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    storage: StorageWeakRef

    @classmethod
    def of(cls, tensor: Tensor) -> Place:
        storage = StorageWeakRef(tensor.untyped_storage())
        return cls(tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, storage)

    def read(self) -> Tensor:
        """Whatever lies there now."""
        if 0 in self.shape:
            return torch.empty(self.shape, dtype=self.dtype)
        count = 1 + sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))
        bytes_there = (ctypes.c_char * (count * self.dtype.itemsize)).from_address(self.address)
        return torch.frombuffer(bytes_there, dtype=self.dtype).as_strided(self.shape, self.stride)


class _Operations(TorchDispatchMode):
    """Notes every operation: of what the pass made itself the tensors, of all else the places."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[tuple[Any, Any, Any, list[Tensor | None]]] = []
        self.made: dict[int, Tensor] = {}
        self.places: list[Place] = []
        self.looked = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = args, kwargs or {}
        self.looked |= func is torch.ops.aten._local_scalar_dense.default
        noted = tree_map(self._noted, given)
        before = {_storage(each) for each in tree_iter(given) if isinstance(each, Tensor)}
        answer = func(*given[0], **given[1])
        out = [each for each in tree_iter(answer) if isinstance(each, Tensor)]
        new = [each.detach() if _storage(each) not in before else None for each in out]
        self.made |= {_storage(each): each for each in new if each is not None}
        self.noted.append((func, *noted, new))
        return answer

    def _noted(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if _storage(value) in self.made:
            return value.detach()
        self.places.append(Place.of(value))
        return self.places[-1]

    def again(self) -> None:
        with torch.no_grad():
            for func, args, kwargs, new in self.noted:
                given = tree_map(_read, (args, kwargs), is_leaf=lambda v: isinstance(v, Place))
                answer = func(*given[0], **given[1])
                out = [each for each in tree_iter(answer) if isinstance(each, Tensor)]
                for old, each in zip(new, out, strict=True):
                    if old is not None:
                        old.copy_(each)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _read(value: Any) -> Any:
    return value.read() if isinstance(value, Place) else value


class AddressTape:
    """Records by `_Operations`; `made` are the recordings, `played` how often one was played."""

    made: list[_Operations]
    played = 0

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def weighed(self, run: Callable[[], ANSWER]) -> tuple[ANSWER, int | None]:
        with _Operations() as operations:
            answer = run()
        return answer, None if operations.looked else 0

    def record(self, run: Callable[[], ANSWER]) -> tuple[ANSWER, Callable[[], None]]:
        with _Operations() as operations:
            answer = tuple(part.detach() for part in run())
        AddressTape.made.append(operations)

        def again() -> None:
            AddressTape.played += 1
            operations.again()

        return answer, again
