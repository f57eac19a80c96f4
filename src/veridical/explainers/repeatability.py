"""Whether a map of random draws would come out again: how far two halves of its own draws agree.

Nothing is asked for it: each half of the answers is fitted alone. Two halves are less alike than two whole
maps, so the correlation r of the halves stands for 2r / (1 + r) of the maps (Spearman 1910, Brown 1910).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from veridical.errors import VeridicalWarning
from veridical.models.context import Context
from veridical.values.task import Task

LOW = 0.5
"""Below this correlation with the map of another seed a map is called noise."""
FEWEST = 4
"""Draws that can be halved into two maps."""
FLAT = 1e-9
"""A half whose values differ by less than this share of their size, or the answers', tells nothing apart."""


def note_halves(
    context: Context, task: Task, draws: int, fit: Callable[[int], Tensor], some: slice = slice(None)
) -> None:
    """Note how far the maps `fit(0)` and `fit(1)` of every second draw agree on some samples, if asked to."""
    valid = task.space.valid
    if context.halves is not None and draws >= FEWEST:
        size = task.outputs.gather(1, task.targets[:, None])[some]
        there = None if valid is None else valid[some]
        context.halves.append(expected_agreement(fit(0), fit(1), there, size))


def expected_agreement(
    first: Tensor, second: Tensor, valid: Tensor | None = None, size: Tensor | float = 0.0
) -> Tensor:
    """(n,): the correlation between two maps that each take as many draws as both halves (n, V) together.

    `size` (n, 1) is that of the answers, beside which a map may be nothing but their rounding.
    """
    halves = torch.stack([first, second]).double()
    there = torch.ones_like(halves[0]) if valid is None else valid.to(halves)
    apart = (halves - (halves * there).sum(-1, keepdim=True) / there.sum(-1, keepdim=True)) * there
    length = torch.linalg.vector_norm(apart, dim=-1)
    large = torch.linalg.vector_norm(torch.cat([halves * there, size + 0 * halves[..., :1]], -1), dim=-1)
    r = (apart[0] * apart[1]).sum(-1) / length.prod(0)
    # halves that contradict one another promise nothing of the whole
    agreement = torch.where(r > 0, 2 * r / (1 + r), r)
    return agreement.masked_fill((length <= FLAT * large).any(0), torch.nan)


def measured(name: str, found: list[Tensor]) -> dict[str, Any]:
    """How far maps repeat, for the provenance; warns where most of a task's are noise."""
    each = torch.cat(found)
    each = each[each.isfinite()]
    if not len(each):
        return {}
    told = {
        "repeatability": {
            "mean": float(each.mean()),
            "smallest": float(each.min()),
            "low": int((each < LOW).sum()),
            "of": len(each),
        }
    }
    if told["repeatability"]["mean"] < LOW:
        warnings.warn(f"'{name}': {in_words(told)}", VeridicalWarning, stacklevel=2)
    return told


def in_words(provenance: Mapping[str, Any]) -> str | None:
    """One sentence on how far maps would come out again; None where nothing was drawn."""
    found = provenance.get("repeatability")
    if not found:
        return None
    text = f"with another seed maps would correlate by {found['mean']:.2f} (halves of their draws say so)"
    if not found["low"]:
        return text
    return (
        f"{text}, {found['low']} of {found['of']} by less than {LOW}: those are mostly noise; ask more rows, "
        "or give the task fewer features (larger patches, superpixels)"
    )
