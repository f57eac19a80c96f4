"""Elimination over samples: all methods start on few, and the rows of the budget go to those still open."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from veridical.auditing.candidates import DRAWS, MetricPanel
from veridical.auditing.evidence import (
    ALPHA,
    MIN_SAMPLES,
    NO_BUDGET,
    STAGES,
    Entry,
    Grid,
    Rules,
    SampleScores,
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
    pairings,
    randomisation_jobs,
    randomisation_units,
    sample_scores,
    size_jobs,
)
from veridical.auditing.posthoc_checks import COPY_SAMPLES, PosthocChecks, same_target
from veridical.core.key import Key
from veridical.errors import VeridicalWarning
from veridical.explainers import Explainer
from veridical.explainers.controls import Random
from veridical.gef.iso_gef import joined_scores
from veridical.metrics import Metric
from veridical.models.context import Memo
from veridical.models.cost import Cost
from veridical.perturb.subset_table import has_few
from veridical.values.evaluation import Evaluation, Failure
from veridical.values.explanation import Explanation
from veridical.values.scores import Scores
from veridical.values.task import Task


class CostEstimate(NamedTuple):
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


def typical_sample(task: Task) -> Task:
    """A sample that has rather many features: three in four have no more."""
    order = task.space.counts(len(task)).argsort(stable=True)
    return task[order[(3 * len(order)) // 4].reshape(1).to(task.device)]


def cost_of_map(explainer: Explainer, one: Task, seed: int) -> Cost:
    """What one map asks; nothing where it fails, which is recorded when it is carried out."""
    try:
        return explainer(one.changed(), Key(seed)).cost  # with no answers at hand
    except Exception:
        return Cost()


def cost_of_scores(metrics: Mapping[str, Metric], task: Task, seed: int) -> CostEstimate:
    """What the scores of one map ask per sample, a first time and once more."""
    one = typical_sample(task)
    maps = [Random()(one, Key(seed) / "draw" / draw) for draw in range(2)]
    asked, memo = [0, 0], Memo()
    for draw, made in enumerate(maps):
        for metric in metrics.values():
            try:
                asked[draw] += rows(metric(one, made, Key(seed), memo).cost)
            except Exception:  # it fails again where that is recorded
                continue
    few = has_few(task, task.fill)
    if few is None or not bool(few.all()):
        return CostEstimate(asked[0], asked[1])
    subsets = float((2.0 ** task.space.counts(len(task))).mean())
    return CostEstimate(asked[0], asked[1], subsets * task.fill.repeats_on(task))


Step = Literal["scores", "randomisation", "posthoc"]
"""What a stage does that costs rows."""
STOP_AFTER = 64
"""Samples from which on an elimination in which nothing is open may end."""


@dataclass(eq=False)
class Candidate:
    """One method or control: its maps and scores so far."""

    label: str
    explainer: Explainer
    cost: Cost = field(default_factory=Cost)
    """What one map asks of the model."""
    done: list[Done] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    control: bool = False
    draws: list[list[Done]] = field(default_factory=list)
    """Further draws of a control, stage by stage."""
    randomisation: list[tuple[Tensor, ...]] = field(default_factory=list)
    """The units of the model randomisation tests, stage by stage."""
    same_target: list[Tensor] = field(default_factory=list)
    """Units against its own maps of other samples of the class, stage by stage."""
    posthoc: PosthocChecks = field(default_factory=PosthocChecks)
    """What was asked beyond the tests."""
    dropped: str = ""
    """Why it left the elimination, and after how many samples."""
    failures: list[Failure] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """Rows that one map asks, forward and backward."""
        return rows(self.cost)

    @property
    def count(self) -> int:
        """How often its maps are drawn."""
        return DRAWS if self.control and self.explainer.stochastic else 1

    def sample_scores(self, metrics: Mapping[str, object], draw: int = 0) -> SampleScores:
        """What these metrics gave its maps."""
        stages = self.done if not draw else [stage[draw - 1] for stage in self.draws]
        return sample_scores(stages, self.sizes, metrics)

    def all_draws(self, metrics: Mapping[str, object]) -> list[SampleScores]:
        """The scores of every draw of a control; where it has no map nobody has beaten it, so that ties."""
        return [self.sample_scores(metrics, draw).tied_where_missing() for draw in range(self.count)]

    def entry(self, panel: MetricPanel) -> Entry:
        randomisation = tuple(torch.cat(parts) for parts in zip(*self.randomisation, strict=True))
        truth = self.sample_scores(panel.truth) if panel.truth else None
        return Entry(self.label, self.sample_scores(panel.removal), truth, randomisation)


@dataclass(eq=False)
class Elimination:
    """Runs the stages; what it found stays in `candidates`, `controls` and `record`."""

    task: Task
    panel: MetricPanel
    criteria: tuple[str, ...]
    copies: Copies | None
    jobs: JobRunner
    budget: int
    candidates: dict[str, Candidate]
    controls: dict[str, Candidate]
    estimate: CostEstimate
    """What the scores of a map ask per sample."""
    admissible: tuple[int, ...] = ()
    """The removal metrics that are admissible, known after the first stage."""
    samples: int = 0
    left_out: dict[str, str] = field(default_factory=dict)
    """Who could not be tried within the budget, and why."""
    used: float = 0.0
    """Rows evaluated so far, by the estimate."""
    stages: list[tuple[int, int, Task, list[Pairing]]] = field(default_factory=list)
    """From and to which sample each went, their task, and how they meet the copies."""
    yardsticks: dict[str, Explanation] = field(default_factory=dict)
    """Maps that tell whether the model treats samples alike, where anybody asked."""

    @property
    def steps(self) -> list[tuple[int, int]]:
        """From and to which sample each stage goes."""
        ends = sorted({end for end in STAGES if end < len(self.task)} | {len(self.task)})
        return list(zip([0, *ends[:-1]], ends, strict=True))

    @property
    def remaining(self) -> list[Candidate]:
        return [candidate for candidate in self.candidates.values() if not candidate.dropped]

    @property
    def first_stage(self) -> Task:
        """The task of the samples that all methods have."""
        return self.stages[0][2]

    @property
    def admissible_labels(self) -> list[str]:
        """The removal metrics that are admissible."""
        return [label for i, label in enumerate(self.panel.removal) if i in self.admissible]

    @property
    def draws(self) -> int:
        """Maps of all controls together."""
        return sum(control.count for control in self.controls.values())

    # --- one stage --------------------------------------------------------------------------------------

    def analyse(self, start: int, stop: int) -> None:
        """Explain and score the next samples, controls first, then whoever is still remaining."""
        batch = self.task[start:stop]
        self.used += self.cost("scores", stop - start, self.remaining)
        self._score(list(self.controls.values()), batch, start, dict(self.panel.scoring))
        everything = {
            **self.panel.scoring,
            **(self.panel.randomisation if self.copies is not None else {}),
        }
        self._score(self.remaining, batch, start, everything)
        self.stages.append((start, stop, batch, []))
        self.samples = stop

    def _score(
        self, candidates: Sequence[Candidate], batch: Task, start: int, metrics: Mapping[str, Metric]
    ) -> None:
        place = f"samples {start} to {start + len(batch)}"
        jobs = [
            (candidate, Job(candidate.label, candidate.explainer, metrics, batch, batch, place, draw))
            for candidate in candidates
            for draw in range(candidate.count)
        ]
        left = max(0, round(self.budget - self.used))
        who = "controls" if candidates and candidates[0].control else "methods open"
        found = self.jobs.do(
            [job for _, job in jobs], f"{place}: {len(candidates)} {who}, {left:,} rows left"
        )
        for candidate in candidates:
            own = [done for (one, _), done in zip(jobs, found, strict=True) if one is candidate]
            candidate.done.append(own[0])
            candidate.draws.append(own[1:])
            candidate.sizes.append(len(batch))
            self._account(candidate, own)
            if own[0].explanation is None:
                candidate.dropped = f"its map failed: {own[0].failures[0].message}"

    # --- the budget -------------------------------------------------------------------------------------

    def cost(self, step: Step, samples: int, candidates: Sequence[Candidate]) -> float:
        """Rows that one step of a stage evaluates for these candidates, by the estimate.

        "scores": their maps, and the scores of these and of the controls' maps. "randomisation": of this
        model a map and two scores each, of a copy two maps and three scores, and one of the input's size.
        "posthoc": a further score each where samples share targets, and maps of the weight-perturbed copy.
        """
        maps, many = sum(candidate.rows for candidate in candidates), len(candidates)
        of = self.estimate.of
        if step == "scores":
            return samples * of(self.draws + many, maps)
        if step == "randomisation":
            return samples * (of(2 * many, maps) + of(3 * many + 1, 2 * maps))
        scores = samples * of(many, 0) if len(same_target(self.task)[0]) else 0.0
        return scores + COPY_SAMPLES * maps

    def fits(self, cost: float) -> bool:
        """Whether what is left of the budget suffices for this."""
        return self.used + cost <= self.budget

    def admit(self) -> None:
        """Let start who can go all the way through the first stage, the cheapest maps first.

        To start somebody whom the budget then ends would ask for most of the rows and decide nothing.
        """
        samples = self.steps[0][1]
        copied = self.copies is not None and "randomisation" in self.criteria
        steps: tuple[Step, ...] = ("scores", "posthoc", "randomisation") if copied else ("scores", "posthoc")
        started: list[Candidate] = []
        for candidate in sorted(self.candidates.values(), key=lambda candidate: candidate.rows):
            tried = [*started, candidate]
            if self.fits(sum(self.cost(step, samples, tried) for step in steps)):
                started = tried
                continue
            del self.candidates[candidate.label]
            self.left_out[candidate.label] = (
                f"one map asks the model {candidate.rows:,} rows, and {samples} of them"
                f"{', with those of other models,' if copied else ''} do not fit the budget of "
                f"{self.budget:,} rows; give budget= more"
            )

    def _account(self, candidate: Candidate, done: Sequence[Done]) -> None:
        for one in done:
            candidate.failures += one.failures
            for failure in one.failures:
                what = "explainer" if failure.metric is None else f"metric '{failure.metric}' on"
                said = f"{what} '{candidate.label}' failed: {failure.message}"
                warnings.warn(said, VeridicalWarning, stacklevel=5)

    # --- the model randomisation test -------------------------------------------------------------------

    def randomisation(self, rules: Rules) -> None:
        """Set other models against the maps of those that pass all else, on more samples while it is open."""
        if self.copies is None or "randomisation" not in self.criteria:
            return
        for number, (start, stop, batch, pairs) in enumerate(self.stages):
            open_ones = [
                r
                for r in self.remaining
                if len(r.randomisation) == number < len(r.done)
                and r.done[number].explanation is not None
                and self._randomisation_open(r, rules)
            ]
            open_ones = self._within_budget(open_ones, stop - start)
            if not open_ones:
                continue
            if not pairs:
                pairs += pairings(batch, start, self.copies)
            place = f"model randomisation, samples {start} to {stop}"
            jobs = [
                randomisation_jobs(r.label, r.explainer, self.panel.randomisation, pairs, place, made)
                for r in open_ones
                if (made := r.done[number].explanation) is not None
            ]
            bare = size_jobs(self.panel.randomisation, pairs, place)
            found = self.jobs.do([*bare, *(job for some in jobs for job in some)], place)
            bare_done, found = found[: len(bare)], found[len(bare) :]
            self.used += self.cost("randomisation", stop - start, open_ones)
            size = len(jobs[0])
            for i, candidate in enumerate(open_ones):
                some = found[i * size : (i + 1) * size]
                self._account(candidate, some)
                own = sample_scores(
                    candidate.done[number : number + 1], [stop - start], self.panel.randomisation
                )
                candidate.randomisation.append(
                    randomisation_units(
                        own, pairs, some, bare_done, list(self.panel.randomisation), rules.grid
                    )
                )

    def _within_budget(self, candidates: Sequence[Candidate], samples: int) -> list[Candidate]:
        """Those whose test still fits the budget, the cheapest first; the others leave with that reason."""
        fitting: list[Candidate] = []
        for candidate in sorted(candidates, key=lambda candidate: candidate.rows):
            if self.fits(self.cost("randomisation", samples, [*fitting, candidate])):
                fitting.append(candidate)
            elif not candidate.randomisation:
                candidate.dropped = f"after {self.samples} samples: {NO_BUDGET}"
        return fitting

    def _randomisation_open(self, candidate: Candidate, rules: Rules) -> bool:
        """Whether it passes all else, and the test has not been decided either way."""
        tests = rules.tests(candidate.entry(self.panel))
        if largest_p([test for test in tests if test.criterion != "randomisation"]) > ALPHA:
            return False
        halves = [test for test in tests if test.criterion == "randomisation"]
        if not halves[0].samples:
            return True
        return largest_p(halves) > ALPHA / len(self.candidates) and min(test.rate for test in halves) > 0.5

    # --- who goes on ------------------------------------------------------------------------------------

    def rules(self) -> Rules:
        """What has to be beaten, by what is known now."""
        removal, truth = self.panel.removal, self.panel.truth
        there = [r for r in self.controls.values() if not r.dropped]
        chance = [r for r in there if r.explainer.stochastic] or there
        return Rules(
            self.criteria,
            Grid.of(self.task),
            self.admissible,
            {r.label: r.all_draws(removal) for r in there},
            {r.label: r.all_draws(truth) for r in chance} if truth else {},
        )

    def tests(self, rules: Rules) -> dict[str, tuple[Test, ...]]:
        """The tests of every method that started."""
        return {
            label: rules.tests(candidate.entry(self.panel)) for label, candidate in self.candidates.items()
        }

    def passing(self, tests: Mapping[str, Sequence[Test]]) -> list[str]:
        """Who passes every test, corrected for all that started."""
        if self.samples < MIN_SAMPLES:
            return []
        adjusted = corrected({label: largest_p(found) for label, found in tests.items()})
        return [label for label, p in adjusted.items() if p <= ALPHA]

    def drop(self, rules: Rules, seed: int) -> bool:
        """Let those leave that cannot lead any more; whether anything is still open."""
        tests = self.tests(rules)
        for candidate in self.remaining:
            lost = [test for test in tests[candidate.label] if test.lost]
            if lost:
                names = ", ".join(
                    f"{of_head(test.rival, self.task.head)} ({test.rate:.0%} won)" for test in lost
                )
                candidate.dropped = f"after {self.samples} samples: it loses to {names}"
        good = [
            label
            for label in self.passing(tests)
            if not self.candidates[label].dropped and not self.candidates[label].posthoc.refused
        ]
        if len(good) > 1:
            kept = leading(rules, [self.candidates[label].entry(self.panel) for label in good], seed)
            for label in good:
                if label not in kept:
                    self.candidates[label].dropped = f"after {self.samples} samples: others win more"
            good = list(kept)
        undecided = [candidate for candidate in self.remaining if candidate.label not in good]
        return bool(undecided) or len(good) > 1


def candidates(explainers: Mapping[str, Explainer], task: Task, seed: int) -> dict[str, Candidate]:
    """The methods, each with the rows that one map asks, counted on one sample."""
    one = typical_sample(task)
    return {
        label: Candidate(label, explainer, cost_of_map(explainer, one, seed))
        for label, explainer in explainers.items()
    }


def evaluation_of(elimination: Elimination, panel: MetricPanel, seed: int) -> Evaluation:
    """Every method and control under every metric; methods that left the elimination have fewer samples."""
    everyone = (*elimination.candidates.values(), *elimination.controls.values())
    scores: dict[tuple[str, str], Scores] = {}
    for candidate in everyone:
        for label in panel.scoring:
            parts = [done.scores[label] for done in candidate.done if label in done.scores]
            if parts and len(parts) == len(candidate.done):
                scores[candidate.label, label] = joined_scores(parts)
    maps = {r.label: made for r in everyone if (made := _maps(r, elimination.task)) is not None}
    failures = [failure for r in everyone for failure in r.failures]
    return Evaluation(elimination.task, scores, maps, failures, False, seed)


def _maps(candidate: Candidate, task: Task) -> Explanation | None:
    parts = [done.explanation for done in candidate.done]
    whole = [part for part in parts if part is not None]
    if not whole or len(whole) < len(parts):
        return None
    return joined_maps(whole, task)


def joined_maps(parts: Sequence[Explanation], task: Task) -> Explanation:
    """The maps of stages that follow each other, from the task's first sample on."""
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
