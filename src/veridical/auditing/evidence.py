"""Evidence: win indicators per sample, the tests and questions made of them, and groups of methods."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from veridical.auditing.grade import Grade
from veridical.auditing.hidden import Veto
from veridical.functional.responses import grid_step
from veridical.functional.selection import leading_group
from veridical.functional.significance import (
    betting_p,
    confidence_sequence,
    settle,
    units_to_settle,
    win_units,
)
from veridical.meta.admissible import tolerance
from veridical.values.task import Task

LEVEL = 0.99
"""Of the intervals of win rates, which hold after every sample at once."""


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


def together(won: Sequence[Tensor]) -> Tensor:
    """Units of several tests as rows of one tensor; NaN is behind those of the shorter ones."""
    return torch.nn.utils.rnn.pad_sequence([each.double() for each in won], True, torch.nan)


def rates(won: Sequence[Tensor]) -> list[Rate]:
    """The win rates of units in the order in which samples were drawn."""
    if not won:
        return []
    rows = together(won)
    low, high = (end.where(~rows.isnan().all(-1), torch.nan) for end in confidence_sequence(rows, LEVEL))
    found = torch.stack([rows.nanmean(-1), low, high, betting_p(rows)], -1).tolist()
    return [Rate(mean, a, b, p, len(each)) for each, (mean, a, b, p) in zip(won, found, strict=True)]


SHOWN = 0.01
"""The level at which a test is shown. It fails at this level divided by the number of a method's tests."""
ALPHA = 0.05
"""The level at which methods are compared with each other."""
MIN_SAMPLES = 24
"""Samples below which there is no verdict: a good method would not be found."""
STAGES = (MIN_SAMPLES, 64, 200, 1000)
"""After how many samples an interim analysis finds who is still open.

The level of comparisons is divided over all of these, also where fewer are made: what a small audit calls
worse, a larger one with the same first interim analyses would call worse, too.
"""
ANOTHER_SAMPLE = "its map of another sample of the class"
HERE = ("another model's map",)
SIZE = "on another model: the size of the input"
THERE = ("on another model: this one's map", SIZE)
"""What the two halves of the model randomisation test set a method's maps against.

The size of the input is the best guess about a model that nobody trained: a map that falls back on it
wherever it finds such a model would win all else.
"""


def of_head(rival: str, head: str) -> str:
    """A rival's name for this head: one without classes has the same answer, or output, in both models."""
    return rival.replace(" of the class", "") if head in ("generation", "regression") else rival


@dataclass(frozen=True)
class Test:
    """One rival that a method has to beat: the share of samples it wins, and what that shows."""

    criterion: str
    """The question it belongs to: removal, randomisation, sample or truth."""
    rival: str
    """A control, maps of another model, or of another sample."""
    rate: float
    """The share of samples that are won; ties count half."""
    low: float
    """The lower end of its 99% interval, which holds after every sample."""
    high: float
    """The upper end."""
    p: float
    """How surely it is more than half: valid however many interim analyses there were."""
    samples: int
    """Samples it rests on."""
    state: str = "open"
    """"shown" or "fails", by the bound that was crossed first, else "open"."""
    settled_at: int = 0
    """After how many samples that was; later ones cannot change it."""

    __test__ = False  # for pytest, which collects what is called so

    @classmethod
    def all_of(cls, won: Mapping[tuple[str, str], Tensor]) -> list[Test]:
        """All tests of a method, from their units by question and rival."""
        if not won:
            return []
        side, at = settle(together(list(won.values())), SHOWN, SHOWN / len(won))
        found = zip(won, rates(list(won.values())), side.tolist(), at.tolist(), strict=True)
        states = ("open", "shown", "fails")
        return [cls(a, b, *rate, state=states[s], settled_at=n) for (a, b), rate, s, n in found]


@dataclass(frozen=True)
class Question:
    """One question about a method and what came of it, by its tests; or why it was not asked."""

    criterion: str
    state: str
    """"shown", "fails", "open" or "not asked"."""
    reason: str = ""
    """Why it was not asked, if so."""
    tests: tuple[Test, ...] = ()

    @classmethod
    def of(cls, criterion: str, tests: Sequence[Test], why_not: str = "") -> Question:
        """It fails if any test fails, and is shown if all are."""
        if why_not:
            return cls(criterion, "not asked", why_not)
        states = {test.state for test in tests}
        state = "fails" if "fails" in states else "shown" if states == {"shown"} else "open"
        return cls(criterion, state, "", tuple(tests))


@dataclass(frozen=True, eq=False)
class Entry:
    """What the elimination knows of one method."""

    label: str
    removal: SampleScores
    truth: SampleScores | None = None
    randomisation: tuple[Tensor, ...] = ()
    """The units of the model randomisation tests, those of `HERE` and `THERE`, as far as they were run."""
    sample: Tensor | None = None
    """Units against its own maps of other samples of the class, as far as that was run."""
    not_asked: Mapping[str, str] = field(default_factory=dict)
    """Questions that cannot be asked of this method, and why."""
    vetoes: tuple[Veto, ...] = ()
    grade: Grade | None = None
    unfinished: str = ""
    """Why it was not tested to the end, if so: a cell that failed, or the budget."""
    dropped: str = ""
    """When and why it left the elimination."""
    alike: float = math.nan
    """How alike its maps of two samples of one class are: the median correlation."""


CRITERIA = ("removal", "near", "randomisation", "sample", "truth")
"""The questions, in the order in which they are asked; "near" takes the place of "removal" near the data."""


@dataclass(frozen=True, eq=False)
class Rules:
    """What all methods have to beat, and how near two scores tie."""

    criteria: tuple[str, ...]
    """The questions that are asked."""
    grid: Grid
    admissible: tuple[int, ...]
    """Which of the removal metrics are admissible."""
    controls: Mapping[str, Sequence[SampleScores]]
    """The draws of each control under the removal metrics."""
    noise: Mapping[str, Sequence[SampleScores]]
    """Those under the truth, of controls that are chance."""
    absent: Mapping[str, str] = field(default_factory=dict)
    """Questions that cannot be asked on this task, and why."""
    chance: tuple[str, ...] = ("random",)
    """The controls that are chance."""

    @property
    def removing(self) -> str:
        """The question that the removal metrics answer."""
        return "near" if "near" in self.criteria else "removal"

    def removal_units(self, own: SampleScores, others: Sequence[SampleScores]) -> Tensor:
        """Wins over the admissible metrics."""
        return units(own.of(self.admissible), [other.of(self.admissible) for other in others], self.grid)

    def won(self, entry: Entry) -> dict[tuple[str, str], Tensor]:
        """The units of every test of a method, by question and rival; none where it has not been run."""
        nothing = torch.empty(0, dtype=torch.float64)
        found = {
            (self.removing, name): self.removal_units(entry.removal, draws)
            for name, draws in self.controls.items()
        }
        if "randomisation" in self.criteria:
            rivals = (*HERE, *THERE)
            won = entry.randomisation or (nothing,) * len(rivals)
            found |= {("randomisation", rival): each for rival, each in zip(rivals, won, strict=True)}
            if self.removing == "near":  # the size of the input may well be right near the data
                del found["randomisation", SIZE]
        if "sample" in self.criteria:
            found["sample", ANOTHER_SAMPLE] = nothing if entry.sample is None else entry.sample
        if "truth" in self.criteria and entry.truth is not None:
            found |= {
                ("truth", name): units(entry.truth, draws, self.grid) for name, draws in self.noise.items()
            }
        return found

    def questions(self, entry: Entry) -> tuple[Question, ...]:
        """All questions about a method; one that it has not reached is open."""
        won = self.won(entry)
        tests = Test.all_of(won)
        why_not = {**self.absent, **entry.not_asked}
        return tuple(
            Question.of(name, [test for test in tests if test.criterion == name], why_not.get(name, ""))
            for name in CRITERIA
            if name in self.criteria or name in why_not
        )

    def samples_needed(self, entry: Entry, question: Question, seed: int = 0) -> int | None:
        """How many samples would settle an open question four times in five; None for more than 1,000."""
        won = self.won(entry)
        still = [won[question.criterion, test.rival] for test in question.tests if test.state == "open"]
        if not still:
            return None
        count = min(map(len, still))
        return units_to_settle(
            torch.stack([each[:count] for each in still]), SHOWN, SHOWN / len(won), seed=seed
        )


def passed(questions: Sequence[Question], but: str = "") -> bool:
    """Whether every question that is asked is shown, one left out where it is named."""
    asked = [question for question in questions if question.state != "not asked"]
    return bool(asked) and all(q.state == "shown" for q in asked if q.criterion != but)


def pairwise(rules: Rules, entries: Sequence[Entry]) -> Tensor:
    """What each method wins against each other one in the samples that all have (E, E, N)."""
    count = min(entry.removal.samples for entry in entries)
    cut = [entry.removal.first(count) for entry in entries]
    return torch.stack([torch.stack([rules.removal_units(a, [b]) for b in cut]) for a in cut])


def leading(rules: Rules, entries: Sequence[Entry], seed: int = 0) -> tuple[str, ...]:
    """The methods that lead, at a level divided over all stages."""
    if len(entries) < 2:
        return tuple(entry.label for entry in entries)
    kept = leading_group(pairwise(rules, entries), level=ALPHA, analyses=len(STAGES), seed=seed)
    return tuple(entries[i].label for i in kept)


def groups_of(rules: Rules, entries: Sequence[Entry], seed: int = 0) -> tuple[tuple[str, ...], ...]:
    """The leading group, then the leading one of the others, and so on.

    Who left the elimination because others win more has fewer samples than those, and does not lead.
    """
    left, found = list(entries), list[tuple[str, ...]]()
    most = max((entry.removal.samples for entry in left), default=0)
    while left:
        there = left if found else [entry for entry in left if entry.removal.samples == most]
        group = leading(rules, there, seed)
        found.append(group)
        left = [entry for entry in left if entry.label not in group]
    return tuple(found)
