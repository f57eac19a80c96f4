"""The verdict: who is trusted, in which group, and the order of methods."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

import torch

from veridical.auditing.candidates import MetricPanel
from veridical.auditing.evidence import (
    ALPHA,
    LEVEL,
    MIN_SAMPLES,
    Entry,
    Rules,
    Test,
    corrected,
    groups_of,
    largest_p,
    rate,
)
from veridical.auditing.posthoc_checks import PosthocChecks
from veridical.meta import MetaEvaluation
from veridical.meta.admissible import PlantedDamage
from veridical.meta.result import MEAN

if TYPE_CHECKING:
    import pandas as pd


NOTHING = (math.nan, math.nan, math.nan)
"""A score and its interval where there is none."""


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
    """One method: the share of samples in which it beats the controls, its tests, and what they come to."""

    explainer: str
    control: bool
    score: float
    """The mean of its win rates against the controls, under removal."""
    low: float
    high: float
    p: float = 1.0
    """The largest p of its tests: that it fails one of them."""
    p_holm: float = 1.0
    """The same, corrected for all methods that started."""
    tests: tuple[Test, ...] = ()
    samples: int = 0
    rows: int = 0
    """Rows that one map evaluates."""
    group: int = 0
    """1 for the leading group, then 2 and so on; 0 for methods that are in none."""
    provisional: bool = False
    """Whether a criterion is absent here, so that trust is provisional."""
    dropped: str = ""
    """When and why it left the elimination."""
    posthoc: PosthocChecks = field(default_factory=PosthocChecks)
    """Whether its maps are about the sample, and hold for nearly the same weights."""

    @property
    def trusted(self) -> bool:
        """Whether it passes every test of every criterion that there is, and no post-hoc check is left."""
        passes = bool(self.tests) and self.p_holm <= ALPHA and self.samples >= MIN_SAMPLES
        return not self.control and passes and not self.posthoc.refused

    @property
    def status(self) -> str:
        """In a word."""
        if self.control:
            return "control"
        if self.trusted:
            return "provisional" if self.provisional else "trusted"
        if not self.samples:
            return "failed"
        if not self.tests:
            return "no verdict"
        return "not trusted" if self.fails else "not decided"

    @property
    def fails(self) -> bool:
        """Whether anything is shown against it: a lost test, or other maps for nearly the same weights."""
        return any(test.lost for test in self.all_tests) or self.posthoc.conclusive

    @property
    def all_tests(self) -> tuple[Test, ...]:
        """All tests, and that against its own map of another sample of the class, where it came to that."""
        other = self.posthoc.sample
        return (*self.tests, other) if other is not None and other.samples else self.tests

    @property
    def not_passed(self) -> tuple[Test, ...]:
        """The tests in which it is not shown to be better, as they stand alone."""
        return tuple(test for test in self.tests if test.p > ALPHA)


@dataclass(frozen=True)
class Pair:
    """Two methods: the share of samples in which the first wins."""

    a: str
    b: str
    rate: float
    low: float
    high: float
    samples: int


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
    sentences: tuple[str, ...] = ()

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

    def to_frame(self) -> pd.DataFrame:
        """One row per explainer, controls last."""
        import pandas as pd

        rows: list[dict[str, Any]] = []
        for place in self.places:
            row = {name: value for name, value in vars(place).items() if name not in ("tests", "posthoc")}
            row |= {"trusted": place.trusted, "status": place.status}
            row |= {name: getattr(place.posthoc, name) for name in ("alike", "perturbed_copy", "refused")}
            for test in place.all_tests:
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
    absent: Mapping[str, str] = field(default_factory=dict)
    dropped: Mapping[str, str] = field(default_factory=dict)
    posthoc: Mapping[str, PosthocChecks] = field(default_factory=dict)
    why_none: str = ""
    """Why there can be no verdict, whatever the entries are."""


def decide(known: Field, metrics: Sequence[MetricRole], seed: int = 0) -> Verdict:
    """Test every method, correct for all that started, and put the trusted ones into groups."""
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
    tests = {label: () if why else rules.tests(entry) for label, entry in entries.items()}
    p = {label: largest_p(found) for label, found in tests.items()}
    adjusted = corrected(p)
    posthoc = {label: known.posthoc.get(label, PosthocChecks()) for label in entries}
    finalists = [
        entry
        for label, entry in entries.items()
        if not why and adjusted[label] <= ALPHA and label not in known.dropped and not posthoc[label].refused
    ]
    groups = groups_of(rules, finalists, seed)
    number = {label: i for i, group in enumerate(groups, 1) for label in group}
    places = [
        Place(
            label,
            False,
            *(_score(rules, entry) if not why else NOTHING),
            p=p[label],
            p_holm=adjusted[label],
            tests=tests[label],
            samples=entry.removal.samples if not bool(entry.removal.missing.all()) else 0,
            rows=known.rows.get(label, 0),
            group=number.get(label, 0),
            provisional=bool(known.absent),
            dropped=known.dropped.get(label, ""),
            posthoc=posthoc[label],
        )
        for label, entry in entries.items()
    ]
    places.sort(key=_order)
    return Verdict(
        (*places, *_control_places(rules, bool(why))),
        tuple(metrics),
        _pairs(rules, entries.values()) if rules.admissible else (),
        groups,
        rules.criteria,
        known.absent,
        samples,
        why,
    )


def _order(place: Place) -> tuple[Any, ...]:
    """Trusted ones by group, the leading one by cost, then the others by win rate; who has no map is last."""
    score = 0.0 if math.isnan(place.score) else place.score
    cost = place.rows if place.group == 1 else 0
    return not place.trusted, place.group or math.inf, cost, not place.samples, -score


def _score(rules: Rules, entry: Entry, but: str = "") -> tuple[float, float, float]:
    """The mean win rate against the controls, and its interval."""
    rivals = [draws for name, draws in rules.controls.items() if name != but]
    if not rivals or not rules.admissible:
        return NOTHING
    won = torch.stack([rules.removal_units(entry.removal, draws) for draws in rivals]).mean(0)
    return rate(won)[:3]


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
    won = {
        (a.label, b.label): rate(rules.removal_units(a.removal, [b.removal]))
        for a, b in combinations(entries, 2)
    }
    return tuple(Pair(*names, r.rate, r.low, r.high, r.samples) for names, r in won.items())


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
