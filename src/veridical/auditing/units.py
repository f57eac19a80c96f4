"""Wins: in how many samples, and how surely, one map is judged better than another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import torch
from torch import Tensor

from veridical.functional.betting import betting_p
from veridical.functional.responses import grid_step
from veridical.functional.wins import win_units
from veridical.meta.voices import tolerance
from veridical.values.task import Task

LEVEL = 0.95
"""Of the intervals of win rates."""


class Marks(NamedTuple):
    """What metrics gave the maps of one method: (M, N), higher is better, and which maps are missing (N,)."""

    utility: Tensor
    missing: Tensor

    def first(self, count: int) -> Marks:
        """The marks of the first samples."""
        return Marks(self.utility[:, :count], self.missing[:count])

    def of(self, metrics: Sequence[int]) -> Marks:
        """The marks that some of the metrics gave."""
        return Marks(self.utility[list(metrics)], self.missing)

    def tied_where_missing(self) -> Marks:
        """The same, but a missing map ties instead of losing."""
        return Marks(self.utility.masked_fill(self.missing, torch.nan), torch.zeros_like(self.missing))

    def take(self, rows: Tensor) -> Marks:
        """The marks of some samples, in this order."""
        return Marks(self.utility[:, rows], self.missing[rows])

    def replaced(self, rows: Tensor, others: Marks) -> Marks:
        """The same with other marks in some samples."""
        return Marks(
            self.utility.index_copy(1, rows, others.utility), self.missing.index_copy(0, rows, others.missing)
        )

    @property
    def samples(self) -> int:
        return self.utility.shape[-1]


def joined(parts: Sequence[Marks]) -> Marks:
    """The marks of samples that follow each other."""
    return Marks(torch.cat([part.utility for part in parts], 1), torch.cat([part.missing for part in parts]))


class Grid(NamedTuple):
    """How near two scores tie: a share of them, and of the size below which a score is rounding."""

    share: float
    scale: float

    @classmethod
    def of(cls, task: Task) -> Grid:
        """By the precision the model answers in; scores are probabilities unless the head is a regression.

        Answers are rounded to a grid, so that differences below its step are nothing but rounding.
        """
        size = float(task.outputs.abs().max()) if task.head in ("regression", "generation") else 1.0
        share = tolerance(task)
        return cls(share, size * grid_step(task.predictor.rounding or task.outputs.dtype) / share)


def units(own: Marks, others: Sequence[Marks], grid: Grid) -> Tensor:
    """One number per sample (N,): the share of metrics and of `others` it wins, where a tie is half a win.

    `others` are several draws of one rival: to beat the mean of draws would be easy where scores are skewed.
    A missing map loses; a metric without a score ties.
    """
    count = min(own.samples, *(other.samples for other in others))
    own = own.first(count)
    each = [
        win_units(
            own.utility,
            other.utility[:, :count],
            grid.share,
            no_map=own.missing,
            other_no_map=other.missing[:count],
            scale=grid.scale,
        )
        for other in others
    ]
    return torch.stack(each).mean((0, 1))


class Rate(NamedTuple):
    """A win rate over samples, its interval inside [0, 1], and p of "no more than half are won"."""

    rate: float
    low: float
    high: float
    p: float
    samples: int


def rate(won: Tensor) -> Rate:
    """The win rate of units in the order in which samples were looked at."""
    if not len(won):
        return Rate(torch.nan, torch.nan, torch.nan, 1.0, 0)
    return Rate(float(won.mean()), *wilson(float(won.mean()), len(won)), float(betting_p(won)), len(won))


def wilson(share: float, count: int, level: float = LEVEL) -> tuple[float, float]:
    """Wilson's interval of a share of `count` samples: inside [0, 1], and never of no width (Wilson 1927).

    Units between 0 and 1 spread less than wins and losses alone would, so it is wide enough for them too.
    """
    z = NormalDist().inv_cdf((1 + level) / 2)
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    reach = z * math.sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2) / (1 + z * z / count)
    return max(0.0, middle - reach), min(1.0, middle + reach)


def shown_to_lose(won: Tensor, level: float) -> bool:
    """Whether it is shown that fewer than half of the samples are won."""
    return bool(len(won)) and float(betting_p(1 - won)) <= level
