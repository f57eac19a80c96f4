"""A small real audit with hostile names, and contents in which every text is hostile."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch

from veridical.audit import Audit, Effort, audit
from veridical.testing import tiny_task

SCRIPT = "</script><img src=x onerror=alert(1)>"
FORMULA = '=cmd("|calc")'
QUOTE = "\"><svg onload='alert(2)'>"
HOSTILE = SCRIPT + QUOTE + "`|[x](y)"
TINY = Effort("tiny", 10, 64, False, 2, 2, (0.2, 0.6), 4, 8, 2, 10, 2, 1, 1, 2, 20, 500, 5)
KEPT = frozenset({"kind", "status", "tone", "picture", "input", "mode", "test", "bibtex"})
"""Keys whose values are ours: words that choose a style, and pictures."""


def breaks(model: object, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    raise ValueError(f"no map today {SCRIPT}")


def tiny_audit(modality: str = "image") -> Audit:
    """Three explainers with hostile names, one that fails, and a control that gives degenerate values."""
    task = tiny_task(modality)
    task.__dict__["name"] = f"task {SCRIPT}"
    named = {
        SCRIPT: "saliency",
        FORMULA: "gradient",
        QUOTE: "input_x_gradient",
        "broken": breaks,
        "flat": "constant",
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return audit(task, explainers=named, effort=TINY)


def hostile(value: Any, key: str = "") -> Any:
    """The same contents with every text replaced by one that attacks."""
    if isinstance(value, Mapping):
        return {name: hostile(held, name) for name, held in value.items()}
    if isinstance(value, list):
        return [hostile(held, key) for held in value]
    return HOSTILE if isinstance(value, str) and key not in KEPT else value
