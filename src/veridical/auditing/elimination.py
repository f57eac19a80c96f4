"""Elimination over samples: all methods start on few, and the rows of the budget go to those still open."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from veridical.auditing.candidates import DRAWS, Judges
from veridical.auditing.evidence import (
    ALPHA,
    FEWEST,
    LOOKS,
    NO_BUDGET,
    Entry,
    Grid,
    Marks,
    Rules,
    Test,
    corrected,
    largest_p,
    leading,
    of_head,
)
from veridical.auditing.jobs import Done, Job, JobRunner
from veridical.auditing.model_randomisation import (
    Copies,
    Pairing,
    marks,
    pairings,
    size_jobs,
    swap_jobs,
    swap_units,
)
from veridical.auditing.posthoc_checks import TWIN_SAMPLES, Doubts, mates
from veridical.core.key import Key
from veridical.errors import VeridicalWarning
from veridical.explainers import Explainer
from veridical.explainers.controls import Random
from veridical.gef.iso_gef import joined_scores
from veridical.metrics import Metric
from veridical.models.cost import Cost
from veridical.perturb.shared_work import sharing
from veridical.perturb.subset_table import has_few
from veridical.values.evaluation import Evaluation, Failure
from veridical.values.explanation import Explanation
from veridical.values.scores import Scores
from veridical.values.task import Task


class Price(NamedTuple):
    """Rows per sample: of the scores of a first map, and of those of each further one, which share some."""

    first: int
    more: int
    most: float = math.inf
    """All that there is to ask about a sample: its subsets, where it has few features."""

    def of(self, maps: int, maps_rows: int) -> float:
        """Rows per sample of so many maps, which ask `maps_rows` themselves, and their scores."""
        return min(self.first + (maps - 1) * self.more + maps_rows, self.most)


def rows(cost: Cost) -> int:
    """Rows forward and backward."""
    return cost.forward + cost.backward


def ordinary(task: Task) -> Task:
    """A sample that has rather many features: three in four have no more."""
    order = task.space.counts(len(task)).argsort(stable=True)
    return task[order[(3 * len(order)) // 4].reshape(1).to(task.device)]


def price_of_map(explainer: Explainer, one: Task, seed: int) -> Cost:
    """What one map asks; nothing where it fails, which is recorded when it is carried out."""
    try:
        return explainer(one.changed(), Key(seed)).cost  # with no answers at hand
    except Exception:
        return Cost()


def price_of_scores(metrics: Mapping[str, Metric], task: Task, seed: int) -> Price:
    """What the scores of one map ask per sample, a first time and once more."""
    one = ordinary(task)
    maps = [Random()(one, Key(seed) / "draw" / draw) for draw in range(2)]
    asked = [0, 0]
    with sharing(one):
        for draw, made in enumerate(maps):
            for metric in metrics.values():
                try:
                    asked[draw] += rows(metric(one, made, Key(seed)).cost)
                except Exception:  # it fails again where that is recorded
                    continue
    few = has_few(task, task.fill)
    if few is None or not bool(few.all()):
        return Price(asked[0], asked[1])
    subsets = float((2.0 ** task.space.counts(len(task))).mean())
    return Price(asked[0], asked[1], subsets * task.fill.repeats_on(task))


ENOUGH = 64
"""Samples from which on a race in which nothing is open may end."""


@dataclass(eq=False)
class Runner:
    """One method or control: its maps and scores so far."""

    label: str
    explainer: Explainer
    asked: Cost = field(default_factory=Cost)
    """What one map asks of the model."""
    done: list[Done] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    control: bool = False
    draws: list[list[Done]] = field(default_factory=list)
    """Further draws of a control, look by look."""
    swap: list[tuple[Tensor, ...]] = field(default_factory=list)
    """The units of the swap's tests, look by look."""
    mates: list[Tensor] = field(default_factory=list)
    """Units against its own maps of other samples of the class, look by look."""
    doubts: Doubts = field(default_factory=Doubts)
    """What was asked beyond the tests."""
    dropped: str = ""
    """Why it left the race, and after how many samples."""
    failures: list[Failure] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """Rows that one map asks, forward and backward."""
        return rows(self.asked)

    @property
    def count(self) -> int:
        """How often its maps are drawn."""
        return DRAWS if self.control and self.explainer.stochastic else 1

    def marks(self, metrics: Mapping[str, object], draw: int = 0) -> Marks:
        """What these metrics gave its maps."""
        looks = self.done if not draw else [look[draw - 1] for look in self.draws]
        return marks(looks, self.sizes, metrics)

    def all_draws(self, metrics: Mapping[str, object]) -> list[Marks]:
        """The marks of every draw of a control; where it has no map nobody has beaten it, so that ties."""
        return [self.marks(metrics, draw).tied_where_missing() for draw in range(self.count)]

    def entry(self, judges: Judges) -> Entry:
        swap = tuple(torch.cat(parts) for parts in zip(*self.swap, strict=True))
        truth = self.marks(judges.truth) if judges.truth else None
        return Entry(self.label, self.marks(judges.removal), truth, swap)


@dataclass(eq=False)
class Race:
    """Runs the looks; what it found stays in `runners`, `controls` and `record`."""

    task: Task
    judges: Judges
    lines: tuple[str, ...]
    copies: Copies | None
    job_runner: JobRunner
    budget: int
    runners: dict[str, Runner]
    controls: dict[str, Runner]
    price: Price
    """What the scores of a map ask per sample."""
    heard: tuple[int, ...] = ()
    """The removal metrics that have a voice, known after the first look."""
    samples: int = 0
    left_out: dict[str, str] = field(default_factory=dict)
    """Who could not be tried within the budget, and why."""
    used: float = 0.0
    """Rows asked so far, by their prices."""
    looks: list[tuple[int, int, Task, list[Pairing]]] = field(default_factory=list)
    """From and to which sample each went, their task, and how they meet the copies."""
    yardsticks: dict[str, Explanation] = field(default_factory=dict)
    """Maps that tell whether the model treats samples alike, where anybody asked."""

    @property
    def steps(self) -> list[tuple[int, int]]:
        """From and to which sample each look goes."""
        ends = sorted({end for end in LOOKS if end < len(self.task)} | {len(self.task)})
        return list(zip([0, *ends[:-1]], ends, strict=True))

    @property
    def racing(self) -> list[Runner]:
        return [runner for runner in self.runners.values() if not runner.dropped]

    @property
    def first_look(self) -> Task:
        """The task of the samples that all methods have."""
        return self.looks[0][2]

    @property
    def heard_labels(self) -> list[str]:
        """The removal metrics that have a voice."""
        return [label for i, label in enumerate(self.judges.removal) if i in self.heard]

    @property
    def draws(self) -> int:
        """Maps of all controls together."""
        return sum(control.count for control in self.controls.values())

    # --- one look ---------------------------------------------------------------------------------------

    def look(self, start: int, stop: int) -> None:
        """Explain and score the next samples, controls first, then whoever is still racing."""
        batch = self.task[start:stop]
        self.used += self._price(stop - start, self.racing)
        with sharing(batch):
            self._score(list(self.controls.values()), batch, start, dict(self.judges.scoring))
            everything = {**self.judges.scoring, **(self.judges.swap if self.copies is not None else {})}
            self._score(self.racing, batch, start, everything)
        self.looks.append((start, stop, batch, []))
        self.samples = stop

    def _score(
        self, runners: Sequence[Runner], batch: Task, start: int, metrics: Mapping[str, Metric]
    ) -> None:
        place = f"samples {start} to {start + len(batch)}"
        jobs = [
            (runner, Job(runner.label, runner.explainer, metrics, batch, batch, place, draw))
            for runner in runners
            for draw in range(runner.count)
        ]
        found = self.job_runner.do([job for _, job in jobs], f"{place}: {len(runners)} {self._said(runners)}")
        for runner in runners:
            own = [done for (who, _), done in zip(jobs, found, strict=True) if who is runner]
            runner.done.append(own[0])
            runner.draws.append(own[1:])
            runner.sizes.append(len(batch))
            self._account(runner, own)
            if own[0].explanation is None:
                runner.dropped = f"its map failed: {own[0].failures[0].message}"

    def _said(self, runners: Sequence[Runner]) -> str:
        left = max(0, round(self.budget - self.used))
        return f"{'controls' if runners and runners[0].control else 'methods open'}, {left:,} rows left"

    def _price(self, samples: int, racing: Sequence[Runner]) -> float:
        """What a look asks: the maps of who is racing, and the scores of theirs and of the controls."""
        return samples * self.price.of(self.draws + len(racing), sum(runner.rows for runner in racing))

    def _swap_price(self, samples: int, racing: Sequence[Runner]) -> float:
        """What the swap asks of the model, a map and two scores each, and of a copy, two maps and three."""
        maps, many = sum(runner.rows for runner in racing), len(racing)
        return samples * (self.price.of(2 * many, maps) + self.price.of(3 * many + 1, 2 * maps))

    def doubt_price(self, samples: int, racing: Sequence[Runner]) -> float:
        """What the last questions ask: one more score of samples that have class-mates, and a twin's maps."""
        scores = samples * self.price.of(len(racing), 0) if len(mates(self.task)[0]) else 0.0
        return scores + TWIN_SAMPLES * sum(runner.rows for runner in racing)

    def pay(self, price: float) -> bool:
        """Take this from the budget if it is there."""
        fits = self.used + price <= self.budget
        self.used += price if fits else 0.0
        return fits

    def admit(self) -> None:
        """Let start who can go all the way through the first look, swap and all, the cheapest maps first.

        To start somebody whom the budget then ends would ask for most of the rows and decide nothing.
        """
        samples = self.steps[0][1]
        swap = self.copies is not None and "swap" in self.lines
        started: list[Runner] = []
        for runner in sorted(self.runners.values(), key=lambda runner: runner.rows):
            tried = [*started, runner]
            asked = self._price(samples, tried) + self.doubt_price(samples, tried)
            asked += self._swap_price(samples, tried) if swap else 0
            if asked <= self.budget:
                started = tried
                continue
            del self.runners[runner.label]
            self.left_out[runner.label] = (
                f"one map asks the model {runner.rows:,} rows, and {samples} of them"
                f"{', with those of other models,' if swap else ''} do not fit the budget of "
                f"{self.budget:,} rows; give budget= more"
            )

    def _account(self, runner: Runner, done: Sequence[Done]) -> None:
        for one in done:
            runner.failures += one.failures
            for failure in one.failures:
                what = "explainer" if failure.metric is None else f"metric '{failure.metric}' on"
                said = f"{what} '{runner.label}' failed: {failure.message}"
                warnings.warn(said, VeridicalWarning, stacklevel=5)

    # --- the swap ---------------------------------------------------------------------------------------

    def swap(self, rules: Rules) -> None:
        """Set other models against the maps of those that pass all else, on more samples while it is open."""
        if self.copies is None or "swap" not in self.lines:
            return
        for number, (start, stop, batch, pairs) in enumerate(self.looks):
            open_ones = [
                r
                for r in self.racing
                if len(r.swap) == number < len(r.done)
                and r.done[number].explanation is not None
                and self._swap_open(r, rules)
            ]
            open_ones = self._within_budget(open_ones, stop - start)
            if not open_ones:
                continue
            if not pairs:
                pairs += pairings(batch, start, self.copies)
            place = f"swap, samples {start} to {stop}"
            with ExitStack() as open_work:
                for judged in (task for pair in pairs for task in pair.judged):
                    open_work.enter_context(sharing(judged))
                jobs = [
                    swap_jobs(r.label, r.explainer, self.judges.swap, pairs, place, made)
                    for r in open_ones
                    if (made := r.done[number].explanation) is not None
                ]
                bare = size_jobs(self.judges.swap, pairs, place)
                found = self.job_runner.do([*bare, *(job for some in jobs for job in some)], place)
            bare_done, found = found[: len(bare)], found[len(bare) :]
            self.used += self._swap_price(stop - start, open_ones)
            size = len(jobs[0])
            for i, runner in enumerate(open_ones):
                some = found[i * size : (i + 1) * size]
                self._account(runner, some)
                own = marks(runner.done[number : number + 1], [stop - start], self.judges.swap)
                runner.swap.append(
                    swap_units(own, pairs, some, bare_done, list(self.judges.swap), rules.grid)
                )

    def _within_budget(self, runners: Sequence[Runner], samples: int) -> list[Runner]:
        """Those whose swap still fits the budget, the cheapest first; the others leave with that reason."""
        fitting: list[Runner] = []
        for runner in sorted(runners, key=lambda runner: runner.rows):
            if self.used + self._swap_price(samples, [*fitting, runner]) <= self.budget:
                fitting.append(runner)
            elif not runner.swap:
                runner.dropped = f"after {self.samples} samples: {NO_BUDGET}"
        return fitting

    def _swap_open(self, runner: Runner, rules: Rules) -> bool:
        """Whether it passes all else, and the swap has not been decided either way."""
        tests = rules.tests(runner.entry(self.judges))
        if largest_p([test for test in tests if test.line != "swap"]) > ALPHA:
            return False
        halves = [test for test in tests if test.line == "swap"]
        if not halves[0].samples:
            return True
        return largest_p(halves) > ALPHA / len(self.runners) and min(test.rate for test in halves) > 0.5

    # --- who goes on ------------------------------------------------------------------------------------

    def rules(self) -> Rules:
        """What has to be beaten, by what is known now."""
        removal, truth = self.judges.removal, self.judges.truth
        there = [r for r in self.controls.values() if not r.dropped]
        chance = [r for r in there if r.explainer.stochastic] or there
        return Rules(
            self.lines,
            Grid.of(self.task),
            self.heard,
            {r.label: r.all_draws(removal) for r in there},
            {r.label: r.all_draws(truth) for r in chance} if truth else {},
        )

    def tests(self, rules: Rules) -> dict[str, tuple[Test, ...]]:
        """The tests of every method that started."""
        return {label: rules.tests(runner.entry(self.judges)) for label, runner in self.runners.items()}

    def passing(self, tests: Mapping[str, Sequence[Test]]) -> list[str]:
        """Who passes every test, corrected for all that started."""
        if self.samples < FEWEST:
            return []
        adjusted = corrected({label: largest_p(found) for label, found in tests.items()})
        return [label for label, p in adjusted.items() if p <= ALPHA]

    def drop(self, rules: Rules, seed: int) -> bool:
        """Let those leave that cannot lead any more; whether anything is still open."""
        tests = self.tests(rules)
        for runner in self.racing:
            lost = [test for test in tests[runner.label] if test.lost]
            if lost:
                names = ", ".join(
                    f"{of_head(test.rival, self.task.head)} ({test.rate:.0%} won)" for test in lost
                )
                runner.dropped = f"after {self.samples} samples: it loses to {names}"
        good = [
            label
            for label in self.passing(tests)
            if not self.runners[label].dropped and not self.runners[label].doubts.refused
        ]
        if len(good) > 1:
            kept = leading(rules, [self.runners[label].entry(self.judges) for label in good], seed)
            for label in good:
                if label not in kept:
                    self.runners[label].dropped = f"after {self.samples} samples: others win more"
            good = list(kept)
        undecided = [runner for runner in self.racing if runner.label not in good]
        return bool(undecided) or len(good) > 1

    def affordable(self, start: int, stop: int) -> bool:
        """Whether the next look fits what is left of the budget."""
        return self.used + self._price(stop - start, self.racing) <= self.budget


def runners(explainers: Mapping[str, Explainer], task: Task, seed: int) -> dict[str, Runner]:
    """The methods, each with the rows that one map asks, counted on one sample."""
    one = ordinary(task)
    return {
        label: Runner(label, explainer, price_of_map(explainer, one, seed))
        for label, explainer in explainers.items()
    }


def evaluation_of(race: Race, judges: Judges, seed: int) -> Evaluation:
    """Every method and control under every metric; methods that left the race have fewer samples."""
    everyone = (*race.runners.values(), *race.controls.values())
    scores: dict[tuple[str, str], Scores] = {}
    for runner in everyone:
        for label in judges.scoring:
            parts = [done.scores[label] for done in runner.done if label in done.scores]
            if parts and len(parts) == len(runner.done):
                scores[runner.label, label] = joined_scores(parts)
    maps = {r.label: made for r in everyone if (made := _maps(r, race.task)) is not None}
    failures = [failure for r in everyone for failure in r.failures]
    return Evaluation(race.task, scores, maps, failures, False, seed)


def _maps(runner: Runner, task: Task) -> Explanation | None:
    parts = [done.explanation for done in runner.done]
    whole = [part for part in parts if part is not None]
    if not whole or len(whole) < len(parts):
        return None
    return joined_maps(whole, task)


def joined_maps(parts: Sequence[Explanation], task: Task) -> Explanation:
    """The maps of looks that follow each other, from the task's first sample on."""
    if len(parts) == 1:
        return parts[0]
    together = {
        name: torch.cat([getattr(part, name) for part in parts])
        for name in ("values", "targets", "ids", "order", "tied", "draw_ids")
    }
    first = parts[0]
    own = first.space.n_features == task.space.n_features  # else features of the method's own, such as codes
    return Explanation(
        together["values"],
        task.space.take(slice(0, len(together["ids"]))) if own else first.space,
        together["targets"],
        together["ids"],
        first.explainer,
        together["order"],
        sum((part.cost for part in parts), Cost()),
        first.provenance,
        given_tied=together["tied"],
        draw_ids=together["draw_ids"],
    )
