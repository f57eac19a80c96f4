"""A small real audit with hostile names, and contents in which every text is hostile."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from veridical.auditing import EFFORTS, Audit, audit
from veridical.testing import tiny_task

SCRIPT = "</script><img src=x onerror=alert(1)>"
FORMULA = '=cmd("|calc")'
QUOTE = "\"><svg onload='alert(2)'>"
HOSTILE = SCRIPT + QUOTE + "`|[x](y)"
TINY = replace(
    EFFORTS["glance"],
    name="tiny",
    samples=24,
    search_draws=2,
    layer_steps=2,
    removal_draws=2,
    removal_sizes=(0.2, 0.6),
    flip_steps=4,
    subset_runs=8,
    damage=(0.5, 1.0),
    describe=True,
    meta_samples=10,
    standing_samples=2,
    standing_draws=20,
    training_rows=500,
    training_epochs=5,
)
KEPT = frozenset({"kind", "status", "tone", "picture", "input", "mode", "test", "bibtex"})
"""Keys whose values are ours: words that choose a style, and pictures."""


def breaks(model: object, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    raise ValueError(f"no map today {SCRIPT}")


def tiny_audit(modality: str = "image") -> Audit:
    """Explainers with hostile names, one that fails, and a control that gives degenerate values."""
    task = tiny_task(modality, samples=24)
    task.__dict__["name"] = f"task {SCRIPT}"
    named = {
        SCRIPT: "saliency",
        FORMULA: "gradient",
        QUOTE: "input_x_gradient",
        "again": "saliency",
        "broken": breaks,
        "flat": "constant",
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return audit(task, explainers=named, effort=TINY, criteria=("removal", "randomisation"), seed=1)


def hostile(value: Any, key: str = "") -> Any:
    """The same contents with every text replaced by one that attacks."""
    if isinstance(value, Mapping):
        return {name: hostile(held, name) for name, held in value.items()}
    if isinstance(value, list):
        return [hostile(held, key) for held in value]
    return HOSTILE if isinstance(value, str) and key not in KEPT else value
