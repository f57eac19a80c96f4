"""Checks of many worlds made together: each one alone would wait for the device."""

from __future__ import annotations

import torch
from torch import Tensor

from veridical.errors import InputError
from veridical.functional.devices import on_host


class Watch:
    """Remembers which rows of maps are not finite, until `settle` says so."""

    def __init__(self) -> None:
        self._maps: list[Tensor] = []
        self._who = ""

    def map(self, values: Tensor, valid: Tensor | None, who: str) -> None:
        """Look at maps (..., N, V); NaN throughout is how an explainer says that it failed on a sample."""
        self._who = who
        kept = values if valid is None else torch.where(valid, values, 0.0)
        # a sum is finite just where all of its terms are: one pass instead of four
        wrong = ~kept.sum(-1).isfinite()
        if on_host(wrong) and not bool(wrong.any()):
            return
        absent = values.isnan() if valid is None else values.isnan() | ~valid
        self._maps.append((wrong & ~absent.all(-1)).reshape(-1, values.shape[-2]))

    def settle(self, *facts: Tensor, excused: Tensor | None = None) -> list[bool]:
        """Refuse maps that were not finite since the last time; and tell these facts, all by one look.

        Samples (N,) whose model gave answers that are not finite are excused: their draws are dropped.
        """
        wrong = torch.cat(self._maps).any(0) if self._maps else None
        self._maps = []
        if wrong is not None and excused is not None:
            wrong = wrong & ~excused
        looks = [*facts, *([] if wrong is None else [wrong.any()])]
        told: list[bool] = torch.stack(looks).tolist() if looks else []
        if wrong is not None and told[-1]:
            raise InputError(
                f"the map of '{self._who}' is NaN or infinite in samples {wrong.nonzero()[:5, 0].tolist()}; "
                "a map must be finite (or NaN throughout, to say that a sample could not be explained)"
            )
        return told[: len(facts)]
