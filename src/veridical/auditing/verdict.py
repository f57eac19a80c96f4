"""The verdict: a word for every method, the groups of those that are trusted, and the order of methods."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from veridical.auditing.candidates import MetricPanel
from veridical.auditing.evidence import (
    LEVEL,
    MIN_SAMPLES,
    Entry,
    Question,
    Rules,
    Test,
    groups_of,
    passed,
    rates,
)
from veridical.auditing.grade import Grade
from veridical.auditing.hidden import Veto
from veridical.meta import MetaEvaluation
from veridical.meta.admissible import PlantedDamage
from veridical.meta.result import MEAN

if TYPE_CHECKING:
    import pandas as pd


NOTHING = (math.nan, math.nan, math.nan)
"""A score and its interval where there is none."""
NO_DIFFERENCE = (0.35, 0.65)
"""A method whose interval of wins against a control lies in here adds nothing to it that is shown."""


@dataclass(frozen=True)
class MetricRole:
    """One metric of an audit: its criterion or kind, whether it decides, and what it can see here.

    `concordance` is how well its scores follow damage that was planted on known maps, `reliability` is its
    meta-consistency, a second opinion. `inadmissible` is why it does not decide, and is empty otherwise.
    """

    metric: str
    criterion: str
    decides: bool
    concordance: float = math.nan
    low: float = math.nan
    high: float = math.nan
    inadmissible: str = ""
    reliability: float = math.nan
    dependence: float = math.nan

    @property
    def admissible(self) -> bool:
        """Whether it decides and is admissible."""
        return self.decides and not self.inadmissible


@dataclass(frozen=True)
class Place:
    """One method: the share of samples in which it beats the controls, its questions, and the word for it."""

    explainer: str
    control: bool
    score: float
    """The mean of its win rates against the controls, under removal."""
    low: float
    high: float
    questions: tuple[Question, ...] = ()
    vetoes: tuple[Veto, ...] = ()
    grade: Grade | None = None
    """How much it shows of what a reference shows."""
    samples: int = 0
    rows: int = 0
    """Rows that one map evaluates."""
    group: int = 0
    """1 for the leading group, then 2 and so on; 0 for methods that are in none."""
    unfinished: str = ""
    """Why it was not tested to the end, if so."""
    dropped: str = ""
    """When and why it left the elimination."""
    alike: float = math.nan
    """How alike its maps of two samples of one class are: the median correlation."""
    equal_to: tuple[str, ...] = ()
    """Controls that it is shown to be hardly better or worse than, though it beats chance."""
    needed: int | None = None
    """How many samples would settle its weakest open question four times in five; None for over 1,000."""

    @property
    def status(self) -> str:
        """The word for it."""
        if self.control:
            return "control"
        if not self.questions:
            return "no verdict"
        if self.unfinished or not self.samples:
            return "not decided"
        wrong = any(veto.fell for veto in self.vetoes)
        failing = [test for test in self.tests if test.state == "fails"]
        if self.equal_to and not wrong and all(test.rival in self.equal_to for test in failing):
            return "adds nothing shown"
        if wrong or failing:
            return "refuted"
        if not passed(self.questions):
            return "not decided"
        whole = [q for q in self.questions if q.criterion in ("removal", "randomisation")]
        return "provisional" if any(q.state == "not asked" for q in whole) else "trusted"

    @property
    def trusted(self) -> bool:
        """Whether it is trusted, provisionally or not."""
        return self.status in ("trusted", "provisional")

    @property
    def provisional(self) -> bool:
        """Whether it is trusted although a question that matters could not be asked."""
        return self.status == "provisional"

    @property
    def tests(self) -> tuple[Test, ...]:
        """The tests of all questions."""
        return tuple(test for question in self.questions for test in question.tests)

    @property
    def p(self) -> float:
        """The largest p of its tests: that it fails one of them."""
        return max((test.p for test in self.tests), default=1.0)

    @property
    def weakest(self) -> Question | None:
        """The open question that is furthest from being shown, of those that were reached."""
        return weakest(self.questions)


def weakest(questions: Sequence[Question]) -> Question | None:
    """The open question that is furthest from being shown, of those that were reached."""
    still = [question for question in questions if question.state == "open"]
    reached = [q for q in still if all(test.samples for test in q.tests)] or still[:1]
    return max(reached, key=lambda q: max((test.p for test in q.tests), default=1.0), default=None)


def equal_to(questions: Sequence[Question], chance: Sequence[str]) -> tuple[str, ...]:
    """The controls, chance apart, that a method neither beats nor loses to by much, while it beats chance."""
    low, high = NO_DIFFERENCE
    tests = [test for q in questions if q.criterion == "removal" for test in q.tests]
    beats = [test.state == "shown" for test in tests if test.rival in chance]
    others = [t.rival for t in tests if t.rival not in chance and low <= t.low and t.high <= high]
    return tuple(others) if beats and all(beats) else ()


@dataclass(frozen=True)
class Pair:
    """Two methods: the share of samples in which the first wins."""

    a: str
    b: str
    rate: float
    low: float
    high: float
    samples: int


class Words(NamedTuple):
    """A verdict in sentences: the answer and what it rests on, a line for each method, and remarks."""

    answer: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Verdict:
    """Who may be used, in groups that cannot be distinguished; `sentences` put it in words."""

    places: tuple[Place, ...]
    metrics: tuple[MetricRole, ...]
    pairs: tuple[Pair, ...]
    groups: tuple[tuple[str, ...], ...]
    criteria: tuple[str, ...]
    absent: Mapping[str, str]
    """Criteria that there are not, and why."""
    samples: int
    why_none: str = ""
    """Why there is no verdict at all, if so."""
    level: float = LEVEL
    words: Words = field(default_factory=Words)

    @property
    def sentences(self) -> tuple[str, ...]:
        """All that is said, most important first."""
        return (*self.words.answer, *self.words.methods, *self.words.remarks)

    @property
    def ranking(self) -> Ranking:
        """The candidates, best first: trusted ones by group, then the others by win rate."""
        return Ranking(place for place in self.places if not place.control)

    @property
    def controls(self) -> tuple[Place, ...]:
        return tuple(place for place in self.places if place.control)

    @property
    def leading(self) -> tuple[str, ...]:
        """The trusted methods that cannot be distinguished from the best."""
        return self.groups[0] if self.groups else ()

    @property
    def best(self) -> str | None:
        """The method to use: the cheapest of the leading group; None when nobody is trusted."""
        return min(self.leading, key=lambda who: self[who].rows, default=None)

    @property
    def deciding(self) -> tuple[MetricRole, ...]:
        """The admissible metrics."""
        return tuple(metric for metric in self.metrics if metric.admissible)

    def __getitem__(self, explainer: str) -> Place:
        return next(place for place in self.places if place.explainer == explainer)

    def share(self, first: str, other: str) -> float:
        """The share of samples in which a method beats another one."""
        pair = next(pair for pair in self.pairs if {pair.a, pair.b} == {first, other})
        return pair.rate if pair.a == first else 1 - pair.rate

    def to_frame(self) -> pd.DataFrame:
        """One row per explainer, controls last."""
        import pandas as pd

        from veridical.auditing.sentences import reason_of

        rows: list[dict[str, Any]] = []
        for place in self.places:
            several = ("questions", "vetoes", "grade")
            row = {name: value for name, value in vars(place).items() if name not in several}
            row |= {"status": place.status, "trusted": place.trusted, "p": place.p}
            row["reason"] = "" if place.control else reason_of(place, verdict=self)
            for name in ("value", "low", "high", "reference"):
                row[f"grade: {name}"] = getattr(place.grade, name, None)
            row |= {question.criterion: question.state for question in place.questions}
            row |= {f"veto: {veto.name}": veto.fell for veto in place.vetoes}
            for test in place.tests:
                row[f"wins: {test.criterion}, {test.rival}"] = test.rate
                row[f"p: {test.criterion}, {test.rival}"] = test.p
            rows.append(row)
        return pd.DataFrame(rows)


@dataclass(frozen=True, eq=False)
class Field:
    """All that a verdict rests on: what the elimination knows of every method, and facts beside it."""

    entries: Mapping[str, Entry]
    rules: Rules
    rows: Mapping[str, int]
    why_none: str = ""
    """Why there can be no verdict, whatever the entries are."""


def decide(known: Field, metrics: Sequence[MetricRole], seed: int = 0) -> Verdict:
    """Ask every question about every method, and put the trusted ones into groups."""
    rules, entries = known.rules, known.entries
    samples = max((entry.removal.samples for entry in entries.values()), default=0)
    why = ""
    if known.why_none:
        why = known.why_none
    elif samples < MIN_SAMPLES:
        why = f"{samples} samples are too few; give at least {MIN_SAMPLES}, better 64"
    elif not rules.controls:
        why = "no control was scored, so nothing shows whether a method is better than chance"
    elif not rules.admissible:
        why = "no metric sees the damage that was planted on known maps, so nothing distinguishes maps"
    places = [_place(entry, rules, known.rows.get(label, 0), why, seed) for label, entry in entries.items()]
    finalists = [entries[place.explainer] for place in places if place.trusted]
    groups = groups_of(rules, finalists, seed)
    number = {label: i for i, group in enumerate(groups, 1) for label in group}
    places = [replace(place, group=number.get(place.explainer, 0)) for place in places]
    places.sort(key=_order)
    return Verdict(
        (*places, *_control_places(rules, bool(why))),
        tuple(metrics),
        _pairs(rules, entries.values()) if rules.admissible else (),
        groups,
        rules.criteria,
        rules.absent,
        samples,
        why,
    )


def _place(entry: Entry, rules: Rules, rows: int, why_none: str, seed: int) -> Place:
    questions = () if why_none else rules.questions(entry)
    still = weakest(questions)
    return Place(
        entry.label,
        False,
        *(NOTHING if why_none else _score(rules, entry)),
        questions=questions,
        vetoes=entry.vetoes,
        grade=entry.grade,
        samples=entry.removal.samples if not bool(entry.removal.missing.all()) else 0,
        rows=rows,
        unfinished=entry.unfinished,
        dropped=entry.dropped,
        alike=entry.alike,
        equal_to=equal_to(questions, rules.chance),
        needed=None if still is None else rules.samples_needed(entry, still, seed),
    )


def _order(place: Place) -> tuple[Any, ...]:
    """Trusted ones by group, then the others by word; the same by win rate, then by cost."""
    words = ("trusted", "provisional", "not decided", "adds nothing shown", "refuted", "no verdict")
    score = 0.0 if math.isnan(place.score) else place.score
    word = 0 if place.trusted else words.index(place.status)
    return word, place.group or math.inf, not place.samples, -score, place.rows


def _score(rules: Rules, entry: Entry, but: str = "") -> tuple[float, float, float]:
    """The mean win rate against the controls, and its interval."""
    rivals = [draws for name, draws in rules.controls.items() if name != but]
    if not rivals or not rules.admissible:
        return NOTHING
    won = torch.stack([rules.removal_units(entry.removal, draws) for draws in rivals]).mean(0)
    return rates([won])[0][:3]


def _control_places(rules: Rules, silent: bool) -> list[Place]:
    """How the controls do against each other; without a verdict they show no numbers either."""
    return [
        Place(
            name,
            True,
            *(NOTHING if silent else _score(rules, Entry(name, draws[0]), but=name)),
            samples=draws[0].samples,
        )
        for name, draws in rules.controls.items()
    ]


def _pairs(rules: Rules, entries: Iterable[Entry]) -> tuple[Pair, ...]:
    """Every two methods, over the samples that both have."""
    two = list(combinations(entries, 2))
    found = rates([rules.removal_units(a.removal, [b.removal]) for a, b in two])
    return tuple(
        Pair(a.label, b.label, r.rate, r.low, r.high, r.samples) for (a, b), r in zip(two, found, strict=True)
    )


HEAD = ("explainer", "beats controls", "samples", "verdict")


class Ranking(tuple["Place", ...]):
    """Places, best first: a tuple that prints each method with its win rate, its group and the verdict."""

    __slots__ = ()

    def rows(self) -> list[tuple[str, str, str, str]]:
        """The cells of the table."""
        return [
            (
                place.explainer,
                "" if math.isnan(place.score) else f"{place.score:.0%} [{place.low:.0%}, {place.high:.0%}]",
                f"{place.samples}",
                place.status + (f", group {place.group}" if place.group else ""),
            )
            for place in self
        ]

    def __repr__(self) -> str:
        table = [HEAD, *self.rows()]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in table)
        return "\n".join(lines)


def metric_roles(
    panel: MetricPanel, found: PlantedDamage | None, reliability: MetaEvaluation | None
) -> tuple[MetricRole, ...]:
    """Every metric with what it can see here; those that decide first."""
    out = []
    for criterion, metrics in (("removal", panel.removal), ("truth", panel.truth)):
        for label in metrics:
            damaged = None if found is None else found.metrics.get(label)
            seen = NOTHING if damaged is None or damaged.untested else damaged.mean()
            role = MetricRole(label, criterion, True, *seen)
            if criterion == "removal" and found is None:
                role = replace(role, inadmissible="no damage could be planted here")
            elif criterion == "removal" and found is not None:
                why = found.inadmissible.get(label) or found.untested.get(label, "")
                role = replace(role, inadmissible=why)
            if reliability is not None and label in reliability.scores:
                moved = reliability.scores[label].dependence.permuted
                role = replace(role, reliability=reliability[label, MEAN].mc, dependence=moved)
            out.append(role)
    return (*out, *(MetricRole(label, held.category, False) for label, held in panel.describing.items()))
