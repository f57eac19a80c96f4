"""Relative input stability: the map's relative change beside the input's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from veridical.metrics import Task, register
from veridical.metrics.robustness._common import RelativeStability, flat_inputs


@register
@dataclass(frozen=True)
class RelativeInputStability(RelativeStability):
    """max over draws of ‖Δe / e‖ / max(‖Δx / x‖, epsilon), divisions by v + epsilon sign(v) (GEF eq. 27).

    Draws that change the prediction are left out.
    """

    name: ClassVar[str] = "relative_input_stability"
    summary: ClassVar[str] = "Does the map change, relatively, more than the input?"
    misleads: ClassVar[str] = (
        "where inputs or maps hold zeros: their relative change is set by epsilon alone, so black "
        "backgrounds make everything look stable and sparse maps nothing"
    )
    paper: ClassVar[str] = "Agarwal et al. 2022; GEF eq. 27"

    def reading(self, task: Task, clean: bool) -> tuple[Tensor, Tensor]:
        _, outputs = super().reading(task, clean)
        return flat_inputs(task), outputs
