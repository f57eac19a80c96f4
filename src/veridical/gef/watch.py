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

    def settle(self) -> None:
        """Refuse what was not finite since the last time."""
        outputs, maps = self._outputs, self._maps
        self._outputs, self._maps = [], []
        if outputs:
            bad = _rows(~torch.cat(outputs).isfinite())
            if bad:
                raise ModelError(
                    f"the model answered NaN or infinity in {len(bad)} rows (first: {bad[:5]}) under noise; "
                    "give a shorter path"
                )
        if maps:
            bad = _rows(torch.cat(maps))
            if bad:
                raise InputError(
                    f"the map of '{self._who}' is NaN or infinite in samples {bad[:5]}; "
                    "a map must be finite (or NaN throughout, to say that a sample could not be explained)"
                )


def _rows(wrong: Tensor) -> list[int]:
    """The rows (worlds, rows) that are wrong in some world."""
    found: list[int] = wrong.any(0).nonzero().reshape(-1).tolist()
    return found
