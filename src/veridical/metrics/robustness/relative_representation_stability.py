"""Relative representation stability: the map's relative change beside that of a layer's activations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from veridical.metrics import Task, register
from veridical.metrics.robustness._common import RelativeStability, representations, why_no_layer


@register
@dataclass(frozen=True)
class RelativeRepresentationStability(RelativeStability):
    """max over draws of ‖Δe / e‖ / max(‖ΔL / L‖, epsilon) with activations L of one layer (GEF eq. 28).

    Divisions are by v + epsilon sign(v). Draws that change the prediction are left out.
    """

    layer: str | None = None
    """Name of the layer whose output is L; None takes what goes into the last linear layer called."""
    name: ClassVar[str] = "relative_representation_stability"
    summary: ClassVar[str] = "Does the map change, relatively, more than the model's representation?"
    misleads: ClassVar[str] = (
        "units at zero before or after a ReLU change by an amount that epsilon sets; another layer gives "
        "another score"
    )
    paper: ClassVar[str] = "Agarwal et al. 2022; GEF eq. 28"
    needs: ClassVar[frozenset[str]] = frozenset({"explainer", "layer"})

    def inapplicable_reason(self, task: Task) -> str | None:
        return super().inapplicable_reason(task) or why_no_layer(task, self.layer)

    def reading(self, task: Task, clean: bool) -> tuple[Tensor, Tensor]:
        return representations(task, self.layer)
