"""Evidence: win indicators per sample, the tests made of them, and groups of methods."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import torch
from torch import Tensor

from veridical.functional import holm
from veridical.functional.responses import grid_step
from veridical.functional.selection import leading_group
from veridical.functional.significance import betting_p, win_units
from veridical.meta.admissible import tolerance
from veridical.values.task import Task

LEVEL = 0.95
"""Of the intervals of win rates."""


class SampleScores(NamedTuple):
    """What metrics gave the maps of one method: (M, N), higher is better, and which maps are missing (N,)."""

    utility: Tensor
    missing: Tensor

    def first(self, count: int) -> SampleScores:
        """The scores of the first samples."""
        return SampleScores(self.utility[:, :count], self.missing[:count])

    def of(self, metrics: Sequence[int]) -> SampleScores:
        """The scores that some of the metrics gave."""
        return SampleScores(self.utility[list(metrics)], self.missing)

    def tied_where_missing(self) -> SampleScores:
        """The same, but a missing map ties instead of losing."""
        return SampleScores(self.utility.masked_fill(self.missing, torch.nan), torch.zeros_like(self.missing))

    def take(self, rows: Tensor) -> SampleScores:
        """The scores of some samples, in this order."""
        return SampleScores(self.utility[:, rows], self.missing[rows])

    def replaced(self, rows: Tensor, others: SampleScores) -> SampleScores:
        """The same with other scores in some samples."""
        return SampleScores(
            self.utility.index_copy(1, rows, others.utility), self.missing.index_copy(0, rows, others.missing)
        )

    @property
    def samples(self) -> int:
        return self.utility.shape[-1]


def joined(parts: Sequence[SampleScores]) -> SampleScores:
    """The scores of samples that follow each other."""
    return SampleScores(
        torch.cat([part.utility for part in parts], 1), torch.cat([part.missing for part in parts])
    )


class Grid(NamedTuple):
    """How near two scores tie: a share of them, and of the size below which a score is rounding."""

    share: float
    scale: float

    @classmethod
    def of(cls, task: Task) -> Grid:
        """By the precision of the model's outputs; scores are probabilities unless the head is a regression.

        Outputs are rounded to a grid, so that differences below its step are nothing but rounding.
        """
        size = float(task.outputs.abs().max()) if task.head in ("regression", "generation") else 1.0
        share = tolerance(task)
        return cls(share, size * grid_step(task.predictor.rounding or task.outputs.dtype) / share)


def units(own: SampleScores, others: Sequence[SampleScores], grid: Grid) -> Tensor:
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
    """The win rate of units in the order in which samples were drawn."""
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


ALPHA = 0.05
"""The chance that an audit trusts any method that does not deserve it."""
MIN_SAMPLES = 24
"""Samples below which there is no verdict: a good method would not be found."""
STAGES = (MIN_SAMPLES, 64, 200, 1000)
"""After how many samples an interim analysis finds who is still open.

The level of comparisons is divided over all of these, also where fewer are made: what a small audit calls
worse, a larger one with the same first interim analyses would call worse, too.
"""
HERE = ("another model's map, same class", "another model's map, its own class")
SIZE = "on another model: the size of the input"
THERE = (
    "on another model: this one's map, same class",
    "on another model: this one's map, its own class",
    SIZE,
)
"""What the two halves of the model randomisation test set a method's maps against.

The size of the input is the best guess about a model that nobody trained: a map that falls back on it
wherever it finds such a model would win all else.
"""


def of_head(rival: str, head: str) -> str:
    """A rival's name for this head: one without classes has the same answer, or output, in both models."""
    same = {"generation": "same answer", "regression": "same output"}.get(head)
    if same is None:
        return rival
    return rival.replace("same class", same).replace("its own class", same).replace(" of the class", "")


@dataclass(frozen=True)
class Test:
    """One rival that a method has to beat: the share of samples it wins, and p of "no more than half"."""

    criterion: str
    """removal, randomisation or truth."""
    rival: str
    """A control, or maps of another model."""
    rate: float
    """The share of samples that are won; ties count half."""
    low: float
    """The lower end of its 95% interval."""
    high: float
    """The upper end."""
    p: float
    """How surely it is more than half: valid however many interim analyses there were."""
    samples: int
    """Samples it rests on."""
    lost: bool = False
    """Whether it is shown that fewer than half are won."""

    __test__ = False  # for pytest, which collects what is called so

    @classmethod
    def of(cls, criterion: str, rival: str, won: Tensor) -> Test:
        return cls(criterion, rival, *rate(won), lost=shown_to_lose(won, ALPHA))


@dataclass(frozen=True, eq=False)
class Entry:
    """What the elimination knows of one method."""

    label: str
    removal: SampleScores
    truth: SampleScores | None = None
    randomisation: tuple[Tensor, ...] = ()
    """The units of the model randomisation tests, those of `HERE` and `THERE`, as far as they were run."""


@dataclass(frozen=True, eq=False)
class Rules:
    """What all methods have to beat, and how near two scores tie."""

    criteria: tuple[str, ...]
    grid: Grid
    admissible: tuple[int, ...]
    """Which of the removal metrics are admissible."""
    controls: Mapping[str, Sequence[SampleScores]]
    """The draws of each control under the removal metrics."""
    noise: Mapping[str, Sequence[SampleScores]]
    """Those under the truth, of controls that are chance."""

    def removal_units(self, own: SampleScores, others: Sequence[SampleScores]) -> Tensor:
        """Wins over the admissible metrics."""
        return units(own.of(self.admissible), [other.of(self.admissible) for other in others], self.grid)

    def tests(self, entry: Entry) -> tuple[Test, ...]:
        """All tests of a method; a criterion that it has not reached counts as lost."""
        found = [
            Test.of("removal", name, self.removal_units(entry.removal, draws))
            for name, draws in self.controls.items()
        ]
        if "truth" in self.criteria and entry.truth is not None:
            found += [
                Test.of("truth", name, units(entry.truth, draws, self.grid))
                for name, draws in self.noise.items()
            ]
        if "randomisation" in self.criteria:
            nothing = torch.empty(0, dtype=torch.float64)
            rivals = (*HERE, *THERE)
            won = entry.randomisation or (nothing,) * len(rivals)
            found += [Test.of("randomisation", what, each) for what, each in zip(rivals, won, strict=True)]
        return tuple(found)


def largest_p(tests: Sequence[Test]) -> float:
    """The p of "it fails at least one test": an intersection-union test needs no correction."""
    return max((test.p for test in tests), default=1.0)


def corrected(p: Mapping[str, float]) -> dict[str, float]:
    """Holm's correction over every method that started."""
    adjusted = holm(torch.tensor(list(p.values()), dtype=torch.float64))
    return dict(zip(p, adjusted.tolist(), strict=True))


def pairwise(rules: Rules, entries: Sequence[Entry]) -> Tensor:
    """What each method wins against each other one in the samples that all have (E, E, N)."""
    count = min(entry.removal.samples for entry in entries)
    cut = [entry.removal.first(count) for entry in entries]
    return torch.stack([torch.stack([rules.removal_units(a, [b]) for b in cut]) for a in cut])


def leading(rules: Rules, entries: Sequence[Entry], seed: int = 0) -> tuple[str, ...]:
    """The methods that lead, at a level divided over all stages."""
    if len(entries) < 2:
        return tuple(entry.label for entry in entries)
    kept = leading_group(pairwise(rules, entries), level=ALPHA, analyses=len(STAGES), seed=seed).kept
    return tuple(entries[i].label for i in kept)


def groups_of(rules: Rules, entries: Sequence[Entry], seed: int = 0) -> tuple[tuple[str, ...], ...]:
    """The leading group, then the leading one of the others, and so on."""
    left, found = list(entries), []
    while left:
        group = leading(rules, left, seed)
        found.append(group)
        left = [entry for entry in left if entry.label not in group]
    return tuple(found)
