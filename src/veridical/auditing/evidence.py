"""The tests a method has to pass, line by line, and what they come to: an intersection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from veridical.auditing.units import Grid, Marks, rate, shown_to_lose, units
from veridical.functional import holm

ALPHA = 0.05
"""The chance that an audit trusts any method that does not deserve it."""
NO_BUDGET = "the budget ended before the swap was run"
"""Why a method that passes all else may not be trusted."""
FEWEST = 24
"""Samples below which there is no verdict: a good method would not be found."""
LOOKS = (FEWEST, 64, 200, 1000)
"""After how many samples the race looks who is still open.

The level of comparisons is divided over all of these, also where fewer are made: what a small audit calls
worse, a larger one that looks at the same samples first would call worse, too.
"""
HERE = ("another model's map, same class", "another model's map, its own class")
SIZE = "on another model: the size of the input"
THERE = (
    "on another model: this one's map, same class",
    "on another model: this one's map, its own class",
    SIZE,
)
"""What the two halves of the swap set a method's maps against.

The size of the input is the best guess about a model that nobody trained: a map that falls back on it
wherever it finds such a model would win all else.
"""


def of_head(rival: str, head: str) -> str:
    """A rival's name for this head: one without classes has the same answer, or output, in both models."""
    asked = {"generation": "same answer", "regression": "same output"}.get(head)
    if asked is None:
        return rival
    return rival.replace("same class", asked).replace("its own class", asked).replace(" of the class", "")


@dataclass(frozen=True)
class Test:
    """One rival that a method has to beat: the share of samples it wins, and p of "no more than half"."""

    line: str
    """removal, swap or truth."""
    rival: str
    """A control, or maps of another model."""
    rate: float
    """The share of samples that are won; ties count half."""
    low: float
    """The lower end of its 95% interval."""
    high: float
    """The upper end."""
    p: float
    """How surely it is more than half: valid however often the race looked."""
    samples: int
    """Samples it rests on."""
    lost: bool = False
    """Whether it is shown that fewer than half are won."""

    __test__ = False  # for pytest, which collects what is called so

    @classmethod
    def of(cls, line: str, rival: str, won: Tensor) -> Test:
        return cls(line, rival, *rate(won), lost=shown_to_lose(won, ALPHA))


@dataclass(frozen=True, eq=False)
class Entry:
    """What the race knows of one method."""

    label: str
    removal: Marks
    truth: Marks | None = None
    swap: tuple[Tensor, ...] = ()
    """The units of the swap's tests, those of `HERE` and `THERE`, as far as they were run."""


@dataclass(frozen=True, eq=False)
class Rules:
    """What all methods have to beat, and how near two scores tie."""

    lines: tuple[str, ...]
    grid: Grid
    heard: tuple[int, ...]
    """Which of the removal metrics have a voice."""
    controls: Mapping[str, Sequence[Marks]]
    """The draws of each control under the removal metrics."""
    noise: Mapping[str, Sequence[Marks]]
    """Those under the truth, of controls that are chance."""

    def removal_units(self, own: Marks, others: Sequence[Marks]) -> Tensor:
        """Wins over the metrics that have a voice."""
        return units(own.of(self.heard), [other.of(self.heard) for other in others], self.grid)

    def tests(self, entry: Entry) -> tuple[Test, ...]:
        """All tests of a method; a line that it has not reached counts as lost."""
        found = [
            Test.of("removal", name, self.removal_units(entry.removal, draws))
            for name, draws in self.controls.items()
        ]
        if "truth" in self.lines and entry.truth is not None:
            found += [
                Test.of("truth", name, units(entry.truth, draws, self.grid))
                for name, draws in self.noise.items()
            ]
        if "swap" in self.lines:
            nothing = torch.empty(0, dtype=torch.float64)
            rivals = (*HERE, *THERE)
            won = entry.swap or (nothing,) * len(rivals)
            found += [Test.of("swap", what, each) for what, each in zip(rivals, won, strict=True)]
        return tuple(found)


def largest_p(tests: Sequence[Test]) -> float:
    """The p of "it fails at least one test": an intersection-union test needs no correction."""
    return max((test.p for test in tests), default=1.0)


def corrected(p: Mapping[str, float]) -> dict[str, float]:
    """Holm's correction over every method that started."""
    if not p:
        return {}
    adjusted = holm(torch.tensor(list(p.values()), dtype=torch.float64)).tolist()
    return dict(zip(p, adjusted, strict=True))
