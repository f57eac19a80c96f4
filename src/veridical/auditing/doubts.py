"""What a method that passes every test may still hide: maps of the class alone, or for these weights alone.

Maps of the class: the method's map of another sample of the same class must explain this sample worse, except
where the model itself treats the samples of a class alike. Maps for these weights: a twin whose weights
differ by a thousandth must get nearly the same maps, and so must the model itself when it is asked again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from veridical.auditing.evidence import ALPHA, Test
from veridical.core.key import Key
from veridical.errors import VeridicalError
from veridical.functional import has_spread, pearson
from veridical.models.cost import Cost
from veridical.models.other_models import noisy
from veridical.values.explanation import Explanation
from veridical.values.task import Task

MATE = "its map of another sample of the class"
PAIRS = 12
"""Samples that share their class with another, below which nothing is asked."""
ALIKE = 0.99
"""The correlation from which on maps are the same."""
HARDLY = 0.95
"""The correlation between samples of a class from which on the verdict says so in words."""
TWIN_NOISE = 1e-3
"""By how much the weights of the twin differ, relatively; registered methods agree to .99 and more."""
TWIN_SAMPLES = 4
TWIN_MOVES = 0.05
"""By how much a twin's answers may move, relative to the largest, to count as nearly the same model."""
AGREE = 0.95
"""The agreement below which maps of twins differ."""
YARDSTICKS = ("gradient", "occlusion")
"""Maps that tell whether the model itself treats samples alike: a linear model has one gradient."""
NOT_ASKED = "the budget ended before it was asked whether its maps are of this sample and hold for a twin"


@dataclass(frozen=True)
class Doubts:
    """What came of it, for one method."""

    refused: str = ""
    """Why it is not trusted although it passes every test, if so."""
    alike: float = math.nan
    """How alike its maps of two samples of one class are: the median correlation."""
    sample: Test | None = None
    """Its maps against those of another sample of the class, where that was asked."""
    twin: float = math.nan
    """How alike its maps are to those of nearly the same model: the median agreement."""
    again: float = math.nan
    """How alike they are when the same model is asked again, where those of the twin are not."""


def likeness(first: Tensor, other: Tensor, where: Tensor | None = None) -> Tensor:
    """The correlation of maps (N,): 1 for two without spread, 0 for one without and one with."""
    flat = ~has_spread(first, where) & ~has_spread(other, where)
    r = pearson(first.double(), other.double(), where)
    return torch.where(flat, 1.0, r.nan_to_num(0.0))


def agreement(first: Tensor, other: Tensor, where: Tensor | None = None) -> Tensor:
    """The correlation of maps (N,), or 1 less their relative difference where that is more.

    Maps that are nearly flat do not correlate, and are nearly the same.
    """
    a, b = (maps.double() if where is None else maps.double() * where for maps in (first, other))
    apart = (a - b).norm(dim=-1) / a.norm(dim=-1).clamp(min=1e-300)
    return torch.maximum(likeness(first, other, where), 1 - apart)


def mates(task: Task) -> tuple[Tensor, Tensor]:
    """Samples that share their class with another, and for each the next one of its class.

    None where features of one sample are not those of another: words of texts, segments of photos.
    """
    rows = torch.arange(len(task), device=task.device)
    if task.head == "generation" or task.space.valid is not None or task.space.per_sample:
        return rows[:0], rows[:0]
    groups = [(task.targets == target).nonzero()[:, 0] for target in task.targets.unique()]
    pairs = [(group, group.roll(-1)) for group in groups if len(group) > 1]
    if not pairs:
        return rows[:0], rows[:0]
    own, other = (torch.cat(some) for some in zip(*pairs, strict=True))
    order = own.argsort()
    return own[order], other[order]


def exchanged(made: Explanation, rows: Tensor, others: Tensor) -> Explanation:
    """The maps of class-mates in the place of the samples' own."""
    own = made.take(rows.to(made.ids.device))
    return replace(own.with_values(made.values[others.to(made.ids.device)]), cost=Cost())


def class_likeness(made: Explanation, rows: Tensor, others: Tensor) -> float:
    """How alike maps of samples of one class are: the median correlation; NaN where there are none."""
    values = made.values
    rows, others = rows.to(values.device), others.to(values.device)
    return float(likeness(values[rows], values[others]).median()) if len(rows) else math.nan


def rightly_alike(made: Explanation, yardstick: Explanation, rows: Tensor, others: Tensor) -> bool:
    """Whether a yardstick hardly depends on the sample either, and says what these maps say."""
    sizes = yardstick.with_values(yardstick.values.abs())
    same = float(likeness(sizes.values, made.values.abs().to(sizes.values.dtype)).median())
    return class_likeness(sizes, rows, others) > ALIKE and same > ALIKE


def twin_of(task: Task, seed: int) -> nn.Module | None:
    """Nearly the same model; None where there are no weights, or none that can be copied."""
    source = task.predictor.source
    if source.shared or not any(p.is_floating_point() for p in source.module.parameters()):
        return None
    try:
        return noisy(source.copied().eval(), Key(seed) / "audit" / "twin", TWIN_NOISE)
    except (VeridicalError, RuntimeError):
        return None


def nearly_the_same(task: Task, twin: Task) -> bool:
    """Whether the answers of a twin are nearly those of the model; steps in a model can make them others."""
    own, other = task.outputs.double(), twin.outputs.double()
    return bool((own - other).abs().max() <= TWIN_MOVES * own.abs().max())


def reason(found: Doubts, rightly: bool) -> str:
    """Why a method is not trusted, in words; nothing where there is no doubt."""
    if found.again < AGREE:
        return (
            f"its maps differ from call to call (r = {found.again:.2f}): those judged here are not those it "
            "gives next time; let it draw from its argument `key`, or from the global generators of torch "
            "and numpy, which are seeded for it"
        )
    if found.twin < AGREE:
        return (
            "its maps turn into others when the weights change by a thousandth "
            f"(r = {found.twin:.2f}): it explains these very weights in a way of its own"
        )
    if found.sample is None or found.sample.samples < PAIRS or found.sample.p <= ALPHA or rightly:
        return ""
    return (
        "its maps are not shown to be about the sample: its map of another sample of the same class does "
        f"as well ({found.sample.rate:.0%} won, r = {found.alike:.2f} between them)"
    )
