"""A few numbers of every weight: a write through `.data` leaves no other trace."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from veridical.model.fingerprint import modules

SAMPLED = 16
"""Numbers read of each tensor."""


class WeightSamples:
    """Numbers read of each parameter and buffer that is no scratch, one tensor per device and dtype.

    Views of the weights are kept, so that reading again is one joining per dtype.
    """

    def __init__(self, model: nn.Module, scratch: frozenset[tuple[int, str]] = frozenset()) -> None:
        self._tensors = [
            value
            for place, module in enumerate(modules(model))
            for name, value in (*module._parameters.items(), *module._buffers.items())
            if (place, name) not in scratch and value is not None
            if value.numel() and value.layout == torch.strided
        ]
        self._look()
        self._first = self._read()

    def _look(self) -> None:
        self._places = _places(self._tensors)
        self._views: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        for value in self._tensors:
            self._views.setdefault((value.device, value.dtype), []).append(_few(value.detach()))

    def _read(self) -> list[Tensor]:
        return [torch.cat(few) for few in self._views.values()]

    def pairs(self) -> list[tuple[Tensor, Tensor]] | None:
        """Numbers as first read and as they are now; None where a tensor has another dtype or device."""
        if self._places is None or self._places != _places(self._tensors):
            before = list(self._views)
            self._look()
            if before != list(self._views):
                return None
        return list(zip(self._first, self._read(), strict=True))


def differ(before: Tensor, now: Tensor) -> bool:
    """Whether any number is another one; NaN is the same as NaN. Looks, and so waits for a GPU."""
    if before.shape != now.shape:
        return True
    return not torch.equal(before.double().nan_to_num(), now.double().nan_to_num())


def _few(value: Tensor) -> Tensor:
    """Some of a tensor's numbers, a view of them where it lies in one piece."""
    if value.is_quantized:
        value = value.int_repr()
    flat = torch.view_as_real(value.resolve_conj()).flatten() if value.is_complex() else value.flatten()
    return flat[:: -(-flat.numel() // SAMPLED)]


def _places(tensors: list[Tensor]) -> list[int] | None:
    """Where the numbers lie, if all lie in one piece, so that views of them show every write."""
    if all(value.is_contiguous() for value in tensors):
        return [value.data_ptr() for value in tensors]
    return None
