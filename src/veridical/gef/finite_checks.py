"""Checks of many worlds made together: each one alone would wait for the device."""

from __future__ import annotations

import torch
from torch import Tensor

from veridical.errors import InputError, ModelError


class Watch:
    """Remembers which rows of outputs and maps are not finite, until `settle` says so."""

    def __init__(self) -> None:
        self._outputs: list[Tensor] = []
        self._maps: list[Tensor] = []
        self._who = ""

    def outputs(self, outputs: Tensor) -> None:
        """Look at a model's answers in some worlds (..., rows, C)."""
        self._outputs.append(outputs.sum(-1, dtype=torch.float64).reshape(-1, outputs.shape[-2]))

    def map(self, values: Tensor, valid: Tensor | None, who: str) -> None:
        """Look at maps (..., N, V); NaN throughout is how an explainer says that it failed on a sample."""
        self._who = who
        kept = values if valid is None else torch.where(valid, values, 0.0)
        # a sum is finite just where all of its terms are: one pass instead of four
        wrong = ~kept.sum(-1).isfinite()
        if wrong.device.type == "cpu" and not bool(wrong.any()):
            return
        absent = values.isnan() if valid is None else values.isnan() | ~valid
        self._maps.append((wrong & ~absent.all(-1)).reshape(-1, values.shape[-2]))

    def settle(self, *facts: Tensor) -> list[bool]:
        """Refuse what was not finite since the last time; and tell these facts, all by one look."""
        outputs = ~torch.cat(self._outputs).isfinite() if self._outputs else None
        maps = torch.cat(self._maps) if self._maps else None
        self._outputs, self._maps = [], []
        broken = [wrong.any() for wrong in (outputs, maps) if wrong is not None]
        told: list[bool] = torch.stack([*facts, *broken]).tolist() if facts or broken else []
        if any(told[len(facts) :]):
            if outputs is not None and (bad := _rows(outputs)):
                raise ModelError(
                    f"the model answered NaN or infinity in {len(bad)} rows (first: {bad[:5]}) under noise; "
                    "give a shorter path"
                )
            if maps is not None and (bad := _rows(maps)):
                raise InputError(
                    f"the map of '{self._who}' is NaN or infinite in samples {bad[:5]}; "
                    "a map must be finite (or NaN throughout, to say that a sample could not be explained)"
                )
        return told[: len(facts)]


def _rows(wrong: Tensor) -> list[int]:
    """The rows (worlds, rows) that are wrong in some world."""
    found: list[int] = wrong.any(0).nonzero().reshape(-1).tolist()
    return found
