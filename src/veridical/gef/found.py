"""What the forms of GEF hand on: distances of one level, and all distortions along a path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from veridical.gef.map_health import MapHealth


@dataclass(frozen=True, eq=False)
class Moved:
    """How far the maps moved at one level, and what the form says about itself."""

    explanation: Tensor
    """One distance per sample (N,)."""
    fit: Tensor | None = None
    """R^2 of the fitted response of the map to the outputs (N,), `jacobian` only."""
    in_span: Tensor | None = None
    """The share of the step that the outputs seen can tell of (N,), `jacobian` only."""


@dataclass(frozen=True, eq=False)
class Found:
    """What was found of one explainer along the path."""

    model: Tensor
    """How far the model moved (N, M, Z)."""
    explanation: Tensor
    """How far the explanation moved (N, M, Z)."""
    size: Tensor
    """The length of the unperturbed maps (N,)."""
    deaf: bool
    """Whether the model never moved."""
    whole: bool
    """Whether no map is missing and every answer is finite."""
    health: MapHealth
    """What a second look at the maps found."""
    fit: Tensor | None = None
    """R^2 of the fitted response of the map to the outputs (N,), `jacobian` only."""
    in_span: Tensor | None = None
    """The share of the steps that the outputs seen can tell of (N,), `jacobian` only."""

    @classmethod
    def joined(cls, parts: Sequence[Found]) -> Found:
        """What was found of some samples after the other."""
        names = ("model", "explanation", "size", "fit", "in_span")
        present = [name for name in names if getattr(parts[0], name) is not None]
        return cls(
            deaf=all(part.deaf for part in parts),
            whole=all(part.whole for part in parts),
            health=replace(
                parts[0].health,
                draws=any(part.health.draws for part in parts),
                repeats=all(part.health.repeats for part in parts),
                rounding=torch.cat([part.health.rounding for part in parts]),
            ),
            **{name: torch.cat([getattr(part, name) for part in parts]) for name in present},
        )
