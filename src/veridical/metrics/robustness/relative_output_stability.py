"""Relative output stability: the map's relative change beside the change of the logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from veridical.functional import euclidean
from veridical.metrics import register
from veridical.metrics.robustness._common import RelativeStability


@register
@dataclass(frozen=True)
class RelativeOutputStability(RelativeStability):
    """max over draws of ‖Δe / e‖ / max(‖h(x) - h(x')‖, epsilon) with logits h (GEF eq. 29).

    Division by e is by e + epsilon sign(e). Draws that change the prediction are left out.
    """

    name: ClassVar[str] = "relative_output_stability"
    summary: ClassVar[str] = "Does the map change more than the model's output?"
    misleads: ClassVar[str] = (
        "the change of logits is absolute, so models of larger logits look more stable; zeros in maps "
        "change by an amount that epsilon sets"
    )
    paper: ClassVar[str] = "Agarwal et al. 2022; GEF eq. 29"

    def moved(self, before: Tensor, after: Tensor) -> Tensor:
        return euclidean(before, after)
