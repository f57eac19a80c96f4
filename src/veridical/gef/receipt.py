"""What noise was put on: a receipt for every score, with a check against an independent copy."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from veridical.gef.found import Found
from veridical.gef.noise_reach import left_out, self_check, still
from veridical.values.scores import Scores
from veridical.values.task import Task

ROWS = 8
"""Samples that the checks look at."""
SAME = 1e-4
"""Of the largest answer: what two runs of one model may differ by."""


@dataclass(frozen=True)
class Receipt:
    """Which weights noise reached, and whether a noisy world is what it should be."""

    parameters: int
    """Numbers that the model learned, as far as torch can see."""
    perturbed: float
    """The share of them that was perturbed."""
    moving: float
    """The share of the perturbed that lies in tensors whose noise moves the output; NaN if not known."""
    left_out: dict[str, str]
    """What was not perturbed, and why."""
    still: tuple[str, ...]
    """Perturbed parameters that move no output."""
    self_check: float
    """How far a noisy world's answers are from those of an independent copy, as a share of the largest."""
    why_not_checked: str = ""
    """Why there is no self-check."""

    @property
    def whole(self) -> bool:
        """Whether all that was learned was perturbed, and the self-check held."""
        return not self.left_out and (self.self_check <= SAME or bool(self.why_not_checked))

    def __str__(self) -> str:
        text = f"{self.perturbed:.1%} of {self.parameters:,} parameters perturbed"
        text += "" if self.moving != self.moving else f", {self.moving:.1%} of those move the output"
        if self.left_out:
            some = [f"{name} ({why})" for name, why in list(self.left_out.items())[:3]]
            more = f" and {len(self.left_out) - 3} more" if len(self.left_out) > 3 else ""
            text += f"; left out: {', '.join(some)}{more}"
        if self.self_check > SAME:
            text += f"; a noisy world differs from an independent copy by {self.self_check:.1e}"
        return text

    def to_json(self) -> dict[str, Any]:
        """The receipt as plain data, for the provenance of the scores."""
        return {**asdict(self), "still": list(self.still), "whole": self.whole, "text": str(self)}


def receipt_of(task: Task) -> Receipt:
    """The receipt of weight noise on a task's model, made once for the task and counted to nobody."""
    found: Receipt = task.cached("gef receipt", lambda: task.uncounted(lambda: _made(task)))
    return found


def of_score(task: Task, found: Found, weights: bool) -> dict[str, Any]:
    """What one score carries: what noise reached, worlds dropped, what a second look at the maps found."""
    lost = (~found.model.isfinite()).any(0)
    health = found.health
    return {
        "worlds": lost.numel(),
        "worlds_dropped": int(lost.sum()),
        "float64_apart": None if math.isnan(health.apart) else health.apart,
        "float64_unchecked": health.why_not,
        "redraws": health.draws,
        "repeats": health.repeats,
        **(receipt_of(task).to_json() if weights else {}),
    }


def incomplete(scores: Iterable[Scores]) -> list[str]:
    """A sentence for everything that noise did not do as it should, the same one once."""
    said = []
    for own in scores:
        receipt = own.provenance.get("receipt", {})
        if not receipt.get("whole", True):
            said.append(f"The weight noise behind GEF is not whole: {receipt['text']}.")
        if receipt.get("worlds_dropped"):
            said.append(
                f"{receipt['worlds_dropped']} of {receipt['worlds']} noisy models behind GEF gave answers "
                "that are not finite; their draws were dropped."
            )
    return list(dict.fromkeys(said))


def _made(task: Task) -> Receipt:
    model = task.predictor.source.module
    perturbed = {name: p for name, p in model.named_parameters() if p.is_floating_point()}
    missing = dict(left_out(model))
    count = sum(p.numel() for p in perturbed.values())
    missed = sum(size for _, size in missing.values())
    judged = task if task.members is None else task.members
    rows = judged[torch.arange(min(ROWS, len(judged)), device=judged.device)]
    unmoved = still(rows)
    moving = 1 - sum(perturbed[name].numel() for name in unmoved or ()) / max(1, count)
    check, why_not = self_check(rows)
    return Receipt(
        count + missed,
        count / max(1, count + missed),
        float("nan") if unmoved is None else moving,
        {name: why for name, (why, _) in missing.items()},
        tuple(unmoved or ()),
        check,
        why_not,
    )
