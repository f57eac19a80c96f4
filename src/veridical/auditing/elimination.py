"""Elimination over samples: all methods start on few, and after every interim analysis the losers leave."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from veridical.auditing.candidates import DRAWS, MetricPanel
from veridical.auditing.evidence import (
    MIN_SAMPLES,
    STAGES,
    Entry,
    Grid,
    Rules,
    SampleScores,
    leading,
    of_head,
    passed,
)
from veridical.auditing.forecast import CostEstimate, cost_of_map, typical_sample
from veridical.auditing.grade import Grade
from veridical.auditing.hidden import Veto
from veridical.auditing.jobs import Done, Job, JobRunner
from veridical.auditing.measured_effects import Effects
from veridical.auditing.model_randomisation import (
    MAPS,
    SCORES,
    Copies,
    Pairing,
    pairings,
    randomisation_jobs,
    randomisation_units,
    sample_scores,
    size_jobs,
)
from veridical.auditing.near_data import NearData
from veridical.auditing.posthoc_checks import why_no_sample
from veridical.errors import InputError, warn
from veridical.explainers import Explainer
from veridical.gef.iso_gef import joined_scores
from veridical.metrics import Metric
from veridical.metrics.faithfulness.near_removal import NearRemoval
from veridical.models.cost import Cost
from veridical.values.evaluation import Evaluation, Failure
from veridical.values.explanation import Explanation
from veridical.values.task import Task

BLOCK = 12
"""Samples that meet other models at once: who wins nearly all of them needs no more."""
STOP_AFTER = 64
"""Samples from which on an elimination in which nothing is open may end."""


@dataclass(eq=False)
class Candidate:
    """One method or control: its maps and scores so far."""

    label: str
    explainer: Explainer
    cost: Cost = field(default_factory=Cost)
    """What one map evaluates."""
    control: bool = False
    done: list[Done] = field(default_factory=list)
    """Its maps and their scores, stage by stage."""
    draws: list[list[Done]] = field(default_factory=list)
    """Further draws of a control, stage by stage."""
    sizes: list[int] = field(default_factory=list)
    """Samples of each stage."""
    randomisation: list[tuple[Tensor, ...]] = field(default_factory=list)
    """The units of the model randomisation tests, stage by stage."""
    same_target: list[Tensor] = field(default_factory=list)
    """Units against its own maps of other samples of the class, stage by stage."""
    alike: float = math.nan
    """How alike its maps of two samples of one class are: the median correlation."""
    not_asked: dict[str, str] = field(default_factory=dict)
    """Questions that cannot be asked of it, and why."""
    vetoes: dict[str, Veto] = field(default_factory=dict)
    """Faults that were looked for, by name."""
    grade: Grade | None = None
    """How much it shows of what a reference shows."""
    unfinished: str = ""
    """Why it is not tested to the end, if so: what failed, or the budget."""
    dropped: str = ""
    """Why it left the elimination, and after how many samples."""
    failures: list[Failure] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """Rows that one map evaluates, forward and backward."""
        return self.cost.forward + self.cost.backward

    @property
    def count(self) -> int:
        """How often its maps are drawn."""
        return DRAWS if self.control and self.explainer.stochastic else 1

    def sample_scores(self, metrics: Mapping[str, object], draw: int = 0) -> SampleScores:
        """The scores of its maps under these metrics."""
        stages = self.done if not draw else [stage[draw - 1] for stage in self.draws]
        if not stages:
            return SampleScores(torch.empty(len(metrics), 0), torch.ones(0, dtype=torch.bool))
        return sample_scores(stages, self.sizes, metrics)

    def all_draws(self, metrics: Mapping[str, object]) -> list[SampleScores]:
        """The scores of every draw of a control; where it has no map nobody has beaten it, so that ties."""
        return [self.sample_scores(metrics, draw).tied_where_missing() for draw in range(self.count)]

    def record(self, done: Sequence[Done]) -> None:
        """Keep and announce what failed."""
        for failure in (failure for one in done for failure in one.failures):
            self.failures.append(failure)
            what = "explainer" if failure.metric is None else f"metric '{failure.metric}' on"
            text = f"{what} '{self.label}' failed: {failure.message}"
            warn(text)


class Stage(NamedTuple):
    """The samples between two interim analyses, and how they meet the copies of the model."""

    start: int
    stop: int
    task: Task
    pairs: dict[int, list[Pairing]]


@dataclass(eq=False)
class Elimination:
    """Runs the stages; what it found stays in `candidates` and `controls`."""

    task: Task
    panel: MetricPanel
    criteria: tuple[str, ...]
    randomised: bool
    """Whether other models will be set against the maps."""
    jobs: JobRunner
    budget: int
    candidates: dict[str, Candidate]
    controls: dict[str, Candidate]
    estimate: CostEstimate
    absent: dict[str, str] = field(default_factory=dict)
    """Questions that cannot be asked on this task, and why."""
    copies: Copies | None = None
    """Those other models."""
    admissible: tuple[int, ...] = ()
    """The removal metrics that are admissible, known after the first stage."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Who could not be tried within the budget, and why."""
    used: float = 0.0
    """Rows evaluated so far, by the estimate."""
    ended: str = ""
    """Why it ended before all samples were compared, if so."""
    stages: list[Stage] = field(default_factory=list)
    effects: list[Effects] = field(default_factory=list)
    """What each feature does, stage by stage, where that was measured."""
    describes: bool = False
    """Whether rows are spent on what decides little, too."""
    yardsticks: dict[str, Explanation] = field(default_factory=dict)
    """Maps that show whether the model treats samples alike, where they were made."""

    @property
    def steps(self) -> list[tuple[int, int]]:
        """From and to which sample each stage goes."""
        ends = sorted({end for end in STAGES if end < len(self.task)} | {len(self.task)})
        return list(zip([0, *ends[:-1]], ends, strict=True))

    @property
    def samples(self) -> int:
        """Samples scored so far."""
        return self.stages[-1].stop if self.stages else 0

    @property
    def remaining(self) -> list[Candidate]:
        return [candidate for candidate in self.candidates.values() if not candidate.dropped]

    @property
    def first_stage(self) -> Task:
        """The task of the samples that all methods have."""
        return self.stages[0].task

    @property
    def admissible_labels(self) -> list[str]:
        """The removal metrics that are admissible."""
        return [label for i, label in enumerate(self.panel.removal) if i in self.admissible]

    @property
    def untuned(self) -> dict[str, Metric]:
        """Those of them that run the model as it is."""
        found = {label: self.panel.removal[label] for label in self.admissible_labels}
        return {label: one for label, one in found.items() if getattr(one, "finetuned", None) is None}

    # --- the budget -------------------------------------------------------------------------------------

    def cost(self, samples: int, candidates: Sequence[Candidate]) -> float:
        """Rows of a stage in which all these go through every test, by the estimate.

        A map and two scores each (its own, and that of its map of another sample), and a score for every draw
        of a control; in the model randomisation test maps and scores for every copy.
        """
        maps, many = sum(candidate.rows for candidate in candidates), len(candidates)
        draws = sum(control.count for control in self.controls.values())
        found = self.estimate.own(draws + 2 * many, maps)
        if self.randomised:  # every copy is a model with outputs of its own
            found += self.estimate.of(SCORES * many + 1, MAPS * maps)
        return samples * found

    def fits(self, samples: int, candidates: Sequence[Candidate]) -> bool:
        """Whether a stage of these fits what is left of the budget."""
        return self.used + self.cost(samples, candidates) <= self.budget

    def admit(self) -> None:
        """Let start who can go all the way through the first stage, the cheapest maps first.

        To start a method that the budget then ends would evaluate most of the rows and decide nothing.
        """
        samples, started = self.steps[0][1], list[Candidate]()
        for candidate in sorted(self.candidates.values(), key=lambda candidate: candidate.rows):
            if self.fits(samples, [*started, candidate]):
                started.append(candidate)
                continue
            del self.candidates[candidate.label]
            self.left_out[candidate.label] = (
                f"one map evaluates {candidate.rows:,} rows, and {samples} of them"
                f"{', with those of other models,' if self.randomised else ''} do not fit the budget "
                f"of {self.budget:,} rows; give budget= more"
            )
        if not self.candidates:
            raise InputError("no explainer fits the budget: " + "; ".join(self.left_out.values()))

    def hold_back(self, samples: int, rules: Rules) -> bool:
        """Let the dearest undecided methods wait until a stage of the others fits; whether there is one.

        Sixty-four samples of eight methods tell more than twenty-four of thirteen.
        """
        undecided = [one for one in self.remaining if not passed(rules.questions(self.entry(one)))]
        going, waiting = list(self.remaining), list[Candidate]()
        for one in sorted(undecided, key=lambda one: -one.rows):
            if not self.fits(samples, going):
                going.remove(one)
                waiting.append(one)
        if not going or not self.fits(samples, going):
            return False
        for one in waiting:
            one.unfinished = f"the budget of {self.budget:,} rows; give budget= more"
            one.dropped = f"after {self.samples} samples: {one.unfinished}"
        return True

    # --- one stage --------------------------------------------------------------------------------------

    def analyse(self, start: int, stop: int) -> None:
        """Explain and score the next samples, controls first, then the methods that remain."""
        batch = self.task[start:stop]
        self.used += self.cost(stop - start, self.remaining)
        self._score(list(self.controls.values()), batch, start, self.panel.scoring)
        self._score(self.remaining, batch, start, self.panel.scoring)
        self.stages.append(Stage(start, stop, batch, {}))

    def _score(
        self, candidates: Sequence[Candidate], batch: Task, start: int, metrics: Mapping[str, Metric]
    ) -> None:
        place = f"samples {start} to {start + len(batch)}"
        jobs = [
            Job(candidate.label, candidate.explainer, metrics, batch, batch, place, draw)
            for candidate in candidates
            for draw in range(candidate.count)
        ]
        found = iter(self.jobs.do(jobs, f"{place}: {len(candidates)} explainers"))
        for candidate in candidates:
            first, *others = [next(found) for _ in range(candidate.count)]
            candidate.done.append(first)
            candidate.draws.append(others)
            candidate.sizes.append(len(batch))
            candidate.record([first, *others])
            if first.explanation is None:
                candidate.dropped = candidate.unfinished = f"its map failed: {first.failures[0].message}"

    # --- the model randomisation test -------------------------------------------------------------------

    def randomisation(self, rules: Rules) -> None:
        """Set other models against the maps of those that pass all else, on more samples while it is open."""
        if self.copies is None:
            return
        metrics = self.untuned
        blocks = [
            (among, stage, torch.arange(at, min(at + BLOCK, stage.stop)) - stage.start)
            for among, stage in enumerate(self.stages)
            for at in range(stage.start, stage.stop, BLOCK)
        ]
        for number, (among, stage, rows) in enumerate(blocks):
            open_ones = [
                (candidate, made.take(rows.to(made.ids.device)))
                for candidate in self.remaining
                if len(candidate.randomisation) == number
                and among < len(candidate.done)
                and (made := candidate.done[among].explanation) is not None
                and self._randomisation_open(candidate, rules)
            ]
            if not open_ones:
                continue
            start = stage.start + int(rows[0])
            if start not in stage.pairs:
                stage.pairs[start] = pairings(stage.task[rows.to(stage.task.device)], start, self.copies)
            pairs = stage.pairs[start]
            place = f"model randomisation, samples {start} to {start + len(rows)}"
            bare = size_jobs(metrics, pairs, place)
            jobs = [
                randomisation_jobs(r.label, r.explainer, metrics, pairs, place, made) for r, made in open_ones
            ]
            done = self.jobs.do([*bare, *(job for some in jobs for job in some)], place)
            sizes, found = done[: len(bare)], iter(done[len(bare) :])
            for (candidate, _), some in zip(open_ones, jobs, strict=True):
                theirs = [next(found) for _ in some]
                candidate.record(theirs)
                failed = next((one.failures[0] for one in theirs if one.explanation is None), None)
                if failed is not None:
                    why = f"the model randomisation test could not be run: {failed.message}"
                    candidate.unfinished = why
                    candidate.dropped = f"after {self.samples} samples: {why}"
                    continue
                own = sample_scores([candidate.done[among]], [stage.stop - stage.start], metrics).take(rows)
                candidate.randomisation.append(
                    randomisation_units(own, pairs, theirs, sizes, list(metrics), rules.grid)
                )

    def stay_near_the_data(self, found: NearData) -> None:
        """Ask about removal near the data alone, against chance: masked rows say nothing of this model."""
        refused = {**self.panel.refused, **dict.fromkeys(self.panel.removal, found.reason)}
        removal = {NearRemoval.name: NearRemoval(step=found.step)}
        self.panel = replace(self.panel, removal=removal, refused=refused)
        self.controls = {label: r for label, r in self.controls.items() if r.explainer.stochastic}
        self.criteria = tuple("near" if line == "removal" else line for line in self.criteria)
        self.absent["removal"] = found.reason

    def leave_out_fine_tuned(self) -> None:
        """Without the test where only metrics with a fine-tuned model see damage: no copy has one."""
        if self.copies is not None and not self.untuned:
            self.copies, self.randomised = None, False
            self.criteria = tuple(line for line in self.criteria if line != "randomisation")
            self.absent["randomisation"] = "only metrics with a fine-tuned model see damage here"

    def _randomisation_open(self, candidate: Candidate, rules: Rules) -> bool:
        """Whether it passes all else, and the test has not been decided either way."""
        questions = rules.questions(self.entry(candidate))
        before = [question for question in questions if question.criterion in ("removal", "near", "truth")]
        half = next(question for question in questions if question.criterion == "randomisation")
        return passed(before) and half.state == "open"

    # --- who goes on ------------------------------------------------------------------------------------

    def rules(self) -> Rules:
        """What has to be beaten, by what is known now."""
        removal, truth = self.panel.removal, self.panel.truth
        there = [r for r in self.controls.values() if not r.dropped]
        chance = [r for r in there if r.explainer.stochastic] or there
        why = why_no_sample(self.task, self.steps)
        no_truth = {} if truth else {"truth": "the task does not say what matters, or it was not required"}
        return Rules(
            self.criteria if why else (*self.criteria, "sample"),
            Grid.of(self.task),
            self.admissible,
            {r.label: r.all_draws(removal) for r in there},
            {r.label: r.all_draws(truth) for r in chance} if truth else {},
            {**self.absent, **({"sample": why} if why else {}), **no_truth},
            tuple(r.label for r in chance),
        )

    def entry(self, candidate: Candidate) -> Entry:
        """What the verdict knows of a method."""
        panel = self.panel
        deciding = (None, *self.admissible_labels, *panel.truth)
        failed = next((one for one in candidate.failures if one.metric in deciding), None)
        why = "" if failed is None else f"{failed.metric or 'its map'} failed: {failed.message}"
        return Entry(
            candidate.label,
            candidate.sample_scores(panel.removal),
            candidate.sample_scores(panel.truth) if panel.truth else None,
            tuple(torch.cat(parts) for parts in zip(*candidate.randomisation, strict=True)),
            torch.cat(candidate.same_target) if candidate.same_target else None,
            candidate.not_asked,
            tuple(candidate.vetoes.values()),
            candidate.grade,
            unfinished=candidate.unfinished or why,
            dropped=candidate.dropped,
            alike=candidate.alike,
        )

    def passing(self, rules: Rules, but: str = "") -> list[Candidate]:
        """Who remains and for whom every question is shown, one left out where it is named."""
        if self.samples < MIN_SAMPLES:
            return []
        entries = [(candidate, self.entry(candidate)) for candidate in self.remaining]
        return [
            candidate
            for candidate, entry in entries
            if not entry.unfinished
            and not any(veto.fell for veto in entry.vetoes)
            and passed(rules.questions(entry), but)
        ]

    def drop(self, rules: Rules, seed: int) -> bool:
        """Let those leave that cannot lead any more; whether anything is still open.

        Who passes goes on to 64 samples all the same: on fewer a hidden feature is hardly ever found.
        """
        after = f"after {self.samples} samples"
        for candidate in self.remaining:
            entry = self.entry(candidate)
            tests = [test for question in rules.questions(entry) for test in question.tests]
            lost = [test for test in tests if test.state == "fails"]
            names = [
                f"it loses to {of_head(test.rival, self.task.head)} ({test.rate:.0%} won)" for test in lost
            ]
            reasons = [*names, *(veto.sentence for veto in entry.vetoes if veto.fell), entry.unfinished]
            if any(reasons):
                candidate.dropped = f"{after}: {', '.join(filter(None, reasons))}"
        good = self.passing(rules)
        kept = leading(rules, [self.entry(candidate) for candidate in good], seed)
        for candidate in good:
            if candidate.label not in kept and self.samples >= STOP_AFTER:
                candidate.dropped = f"{after}: others win more"
        return len(kept) > 1 or any(candidate.label not in kept for candidate in self.remaining)


def candidates(explainers: Mapping[str, Explainer], task: Task, seed: int) -> dict[str, Candidate]:
    """The methods, each with the rows that one map evaluates, counted on one sample."""
    one = typical_sample(task)
    return {
        label: Candidate(
            label,
            explainer,
            cost_of_map(explainer, one, seed),
            not_asked={"randomisation": explainer.one_model} if explainer.one_model else {},
        )
        for label, explainer in explainers.items()
    }


def evaluation_of(elimination: Elimination, seed: int) -> Evaluation:
    """Every method and control under every metric; methods that left the elimination have fewer samples."""
    everyone = (*elimination.candidates.values(), *elimination.controls.values())
    scores = {
        (candidate.label, label): joined_scores([done.scores[label] for done in candidate.done])
        for candidate in everyone
        for label in elimination.panel.scoring
        if candidate.done and all(label in done.scores for done in candidate.done)
    }
    maps = {
        candidate.label: joined_maps(made, elimination.task)
        for candidate in everyone
        if (made := [done.explanation for done in candidate.done if done.explanation is not None])
        and len(made) == len(candidate.done)
    }
    failures = [failure for candidate in everyone for failure in candidate.failures]
    return Evaluation(elimination.task, scores, maps, failures, False, seed)


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
