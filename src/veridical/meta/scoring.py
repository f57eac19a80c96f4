"""Visiting every world once: each explanation is made once there and serves all metrics."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from veridical.errors import InputError, VeridicalWarning
from veridical.explainers import Explainer
from veridical.masking.shared_work import sharing
from veridical.meta.consistency import FEWEST
from veridical.meta.dependence import Altered, Dependence, altered, dependence, reach
from veridical.meta.explanation_counts import Tally, counted
from veridical.meta.finetuned import carry, settled
from veridical.meta.prediction_agreement import answers, held
from veridical.meta.published import Recalled
from veridical.meta.sanity import UNPERTURBED
from veridical.meta.worlds import Mode, Test, World, unperturbed
from veridical.metrics.base import AnyMetric, ExplainerMetric, Metric
from veridical.model.cost import Cost
from veridical.progress import track
from veridical.random.keyed import Key
from veridical.values.evaluation import Failure
from veridical.values.explanation import Explanation
from veridical.values.scores import Direction, Scores
from veridical.values.task import Task

T = TypeVar("T")
Joint = dict[tuple[str, str], Scores | Exception]


@dataclass(eq=False)
class Book:
    """One metric's scores: `base` (L, N) per test, `scores` (iterations, draws, L, N) per test and mode."""

    metric: str
    category: str
    direction: Direction
    base: dict[Test, Tensor] = field(default_factory=dict)
    scores: dict[tuple[Test, Mode], Tensor] = field(default_factory=dict)
    checks: dict[str, Dependence] = field(default_factory=dict)
    own: Tally = field(default_factory=Tally)
    cost: Cost = field(default_factory=Cost)

    @property
    def dependence(self) -> Dependence:
        """How far the scores depend on the explanation, over all explainers."""
        return Dependence.over(self.checks)


@dataclass(eq=False)
class Visit:
    """The state of one meta-evaluation while worlds are visited."""

    task: Task
    metrics: dict[str, AnyMetric]
    explainers: Mapping[str, Explainer]
    tests: tuple[Test, ...]
    root: Key
    iterations: tuple[int, ...]
    draws: int
    published: bool = False
    epsilon: float | None = None
    fixed: frozenset[str] = frozenset()
    redraws: int = 0
    all_worlds: bool = False
    """Whether worlds in which too few samples count are scored all the same."""
    drawn_again: dict[tuple[Test, Mode], int] = field(default_factory=dict)
    books: dict[str, Book] = field(default_factory=dict)
    kept: dict[tuple[Test, Mode], Tensor] = field(default_factory=dict)
    shared: Tally = field(default_factory=Tally)
    shared_cost: Cost = field(default_factory=Cost)
    failures: list[Failure] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    interrupted: bool = False
    bases: dict[Test, Task] = field(default_factory=dict)
    old_maps: dict[str, Explanation] = field(default_factory=dict)
    other_scores: dict[str, tuple[str, str, Tensor, Tensor]] = field(default_factory=dict)

    def run(
        self, worlds: list[World], progress: bool | None, after_iteration: Callable[[int], None] | None = None
    ) -> None:
        """Score the unperturbed world, then every perturbed one, an iteration after the other."""
        self._open(worlds)
        last = {world.iteration: place for place, world in enumerate(worlds)}
        ends = {place: row for row, place in enumerate(last.values(), 1)}
        try:
            for base, tests in self._distinct_bases():
                self._score_base(base, tests)
            for place, world in enumerate(track(worlds, "meta-evaluating", progress)):
                self._score_world(world)
                if after_iteration is not None and place in ends:
                    after_iteration(ends[place])
        except KeyboardInterrupt:
            self.interrupted = True
            warnings.warn("interrupted; the finished worlds are kept", VeridicalWarning, stacklevel=3)

    def found(self, iterations: int) -> tuple[dict[str, Book], dict[tuple[Test, Mode], Tensor]]:
        """The books and the kept samples of the first iterations, on the CPU."""
        books = {
            label: replace(
                book,
                base={test: scores.cpu() for test, scores in book.base.items()},
                scores={place: scores[:iterations].cpu() for place, scores in book.scores.items()},
            )
            for label, book in self.books.items()
        }
        return books, {place: kept[:iterations].cpu() for place, kept in self.kept.items()}

    @property
    def remarks(self) -> list[str]:
        """What is to be said of the worlds as they came out."""
        again = [f"{t} {m}: {n} draws without enough samples" for (t, m), n in self.drawn_again.items() if n]
        return [*self.broken, *(f"{words} were drawn again" for words in again)]

    def _open(self, worlds: list[World]) -> None:
        samples, device = len(self.task), self.task.device
        runs = (len(self.iterations), self.draws)
        shape = (*runs, len(self.explainers), samples)
        places = dict.fromkeys((world.test, world.mode) for world in worlds)
        self.kept = {p: torch.zeros((*runs, samples), dtype=torch.bool, device=device) for p in places}
        self.bases = {test: unperturbed(self.task, test) for test in self.tests}
        for base in self.bases.values():
            # what was calibrated on tokens holds at their embeddings
            base.__dict__["_calibrations"].update(self.task.__dict__["_calibrations"])
        for label, metric in list(self.metrics.items()):
            book = Book(label, metric.category, metric.better)
            for test in self.tests:
                book.base[test] = torch.full(shape[2:], torch.nan, dtype=torch.float64, device=device)
            for place in places:
                book.scores[place] = torch.full(shape, torch.nan, dtype=torch.float64, device=device)
            self.books[label] = book
            made = self._guarded(label, None, partial(settled, metric, self.task))
            if made is not None:
                self.metrics[label] = made

    def _distinct_bases(self) -> list[tuple[Task, list[Test]]]:
        """Every unperturbed task with the tests it serves: text has one of tokens and one of embeddings."""
        tests_by_base: dict[bool, list[Test]] = {}
        for test in self.tests:
            tests_by_base.setdefault(self.bases[test] is self.task, []).append(test)
        shared = {same: self.bases[tests[0]] for same, tests in tests_by_base.items()}
        self.bases = {t: shared[same] for same, tests in tests_by_base.items() for t in tests}
        return [(shared[same], tests) for same, tests in tests_by_base.items()]

    # --- one world ----------------------------------------------------------------------------------

    def _score_base(self, base: Task, tests: list[Test]) -> None:
        key = self.root / UNPERTURBED
        first = tests[0] == self.tests[0]
        if base is not self.task:
            for metric in self.metrics.values():
                carry(metric, self.task, base, lambda task: unperturbed(task, tests[0]))
        with sharing(base, once=True):
            joint = self._score_together(base, self.explainers, key)
            permuted: Joint = {}
            if first:
                dealt = {who: Altered(explainer, "permuted") for who, explainer in self.explainers.items()}
                permuted = self._score_together(base, dealt, key, counting=False)
            for place, (who, explainer) in enumerate(self.explainers.items()):
                explanation = self._explain(explainer, base, key)
                if self.published and base is self.bases.get("ipt"):
                    self.old_maps[who] = explanation
                for label in list(self.metrics):
                    values = self._score(label, who, base, explainer, explanation, key, joint)
                    if values is None:
                        continue
                    for test in tests:
                        self.books[label].base[test][place] = values
                    if first:
                        self._test_dependence(label, who, base, explanation, key, values, permuted)

    def _score_world(self, world: World) -> None:
        world, made, outputs, kept = self._drawn(world)
        place, row = (world.test, world.mode), self.iterations.index(world.iteration)
        self.kept[place][row, world.draw] = kept
        self.drawn_again[place] = self.drawn_again.get(place, 0) + world.attempt
        if not bool(outputs.isfinite().all()):
            name = f"{world.test} {world.mode}, iteration {world.iteration}, draw {world.draw}"
            self.broken.append(f"{name}: the model answers NaN or infinity and cannot be scored")
            return
        if int(kept.sum()) < FEWEST and not self.all_worlds:
            return
        base, key = self.bases[world.test], world.key(self.root)
        # what a metric has calibrated belongs to its settings and stays that of the unperturbed world
        made.__dict__["_calibrations"].update(base.__dict__["_calibrations"])
        # what the prediction was judged by is the world's own answer to its inputs, and not asked again
        made.cached("outputs", lambda: outputs)
        keep_maps = self.published and world.test == "ipt"
        # no other sample counts; old maps are those of all samples
        some = slice(None) if keep_maps or bool(kept.all()) else kept.nonzero()[:, 0]
        made = made if isinstance(some, slice) else made[some]
        for metric in self.metrics.values():
            carry(metric, self.task, made, lambda task: world.of(task, self.root, self.published)[some])
        explanations: dict[str, Explanation] = {}
        judged: dict[str, Explainer] = {}
        for who, explainer in self.explainers.items():
            if not keep_maps:
                explanations[who], judged[who] = self._explain(explainer, made, key), explainer
            else:
                explanation = self.old_maps[who]
                if explainer.draws_on(base):
                    explanation = self._explain(explainer, base, key)
                explanations[who], judged[who] = explanation, Recalled(explainer, explanation, made)
        with sharing(made, once=True):
            joint = self._score_together(made, judged, key)
            for at, who in enumerate(self.explainers):
                for label in list(self.metrics):
                    values = self._score(label, who, made, judged[who], explanations[who], key, joint)
                    if values is None:
                        continue
                    clean = self.books[label].base[world.test][at, some]
                    seen = values.double() if isinstance(some, slice) else _unmoved(values, clean, outputs)
                    self.books[label].scores[place][row, world.draw, at, some] = seen
                    if world.mode == "ar" and world.test == self.tests[0]:
                        self._test_reach(label, who, made, explanations[who], key, values)

    def _drawn(self, world: World) -> tuple[World, Task, Tensor, Tensor]:
        """A world, its answers and the samples that count there; drawn again where these are too few."""
        for attempt in range(1 + self.redraws):
            tried = replace(world, attempt=attempt)
            made = tried.of(self.task, self.root, self.published)
            outputs = answers(made)
            same = held(self.task, outputs, self.epsilon)
            kept = (same if world.mode == "nr" else ~same) & outputs.isfinite().all(-1)
            if int(kept.sum()) >= FEWEST:
                break
        return tried, made, outputs, kept

    def _explain(self, explainer: Explainer, task: Task, key: Key) -> Explanation:
        explanation = explainer(task, key / "explain")
        self.shared.add(task)
        self.shared_cost = self.shared_cost + explanation.cost
        return explanation

    def _own_key(self, label: str, key: Key) -> Key:
        """The key of a metric's own draws in a world."""
        return (self.root / UNPERTURBED if label in self.fixed else key) / "score"

    def _score_together(
        self, task: Task, explainers: Mapping[str, Explainer], key: Key, counting: bool = True
    ) -> Joint:
        """The scores of metrics that share work between explainers, made before the others."""
        out: Joint = {}
        for label, metric in self.metrics.items():
            if not isinstance(metric, ExplainerMetric) or type(metric).score_all is ExplainerMetric.score_all:
                continue
            own = self.books[label].own if counting else Tally()
            methods = {who: counted(explainer, own) for who, explainer in explainers.items()}
            found = metric.score_all(task, methods, self._own_key(label, key))
            out |= {(label, who): scores for who, scores in found.items()}
        return out

    def _score(
        self,
        label: str,
        who: str,
        task: Task,
        explainer: Explainer,
        explanation: Explanation,
        key: Key,
        joint: Joint | None = None,
    ) -> Tensor | None:
        metric, book = self.metrics[label], self.books[label]

        def score() -> Tensor:
            own = self._own_key(label, key)
            ready = (joint or {}).get((label, who))
            if isinstance(ready, Exception):
                raise ready
            if ready is not None:
                scores = ready
            elif isinstance(metric, ExplainerMetric):
                scores = metric(task, counted(explainer, book.own), own)
            elif isinstance(metric, Metric):
                scores = metric(task, explanation, own)
            else:
                raise InputError(f"'{label}' judges neither maps nor methods")
            book.cost = book.cost + scores.cost
            return scores.values

        return self._guarded(label, who, score)

    def _guarded(self, label: str, who: str | None, work: Callable[[], T]) -> T | None:
        """A metric that raises is left out from then on, with its traceback kept; the others go on."""
        try:
            return work()
        except Exception as error:
            self.failures.append(Failure(who or "", label, str(error), traceback.format_exc()))
            warnings.warn(f"metric '{label}' failed and is left out: {error}", VeridicalWarning, stacklevel=4)
            del self.metrics[label], self.books[label]
            return None

    def _test_dependence(
        self, label: str, who: str, task: Task, maps: Explanation, key: Key, before: Tensor, permuted: Joint
    ) -> None:
        """Score altered maps of the unperturbed world, of which the first explainer's are remembered."""
        book = self.books[label]

        def other(how: str) -> Tensor | None:
            return self._altered_score(
                label, who, task, maps, key, how, permuted if how == "permuted" else None
            )

        book.checks[who], how, after = dependence(before, other)
        if after is not None:
            self.other_scores.setdefault(label, (who, how, before, after))

    def _test_reach(
        self, label: str, who: str, task: Task, maps: Explanation, key: Key, before: Tensor
    ) -> None:
        """Score altered maps of a disrupted world too, where samples lie apart by their predictions."""
        asked, how, clean, clean_after = self.other_scores.get(label, ("", "", before, before))
        if asked != who:
            return
        del self.other_scores[label]
        book = self.books[label]
        after = self._altered_score(label, who, task, maps, key, how)
        if after is not None:
            found = reach(torch.cat([clean, before]), torch.cat([clean_after, after]))
            book.checks[who] = replace(book.checks[who], reach=found)

    def _altered_score(
        self,
        label: str,
        who: str,
        task: Task,
        maps: Explanation,
        key: Key,
        how: str,
        ready: Joint | None = None,
    ) -> Tensor | None:
        """The scores of other maps; what they ask is no part of what the evaluation costs."""
        book = self.books[label]
        own, cost = Tally(book.own.calls, book.own.samples), book.cost
        method = Altered(self.explainers[who], how)
        found = self._score(label, who, task, method, altered(maps, how, self.root / how), key, ready)
        book.own, book.cost = own, cost
        return found


def _unmoved(values: Tensor, clean: Tensor, outputs: Tensor) -> Tensor:
    """Scores, where those that other batches moved by their last bits alone are the unperturbed ones."""
    near = (values - clean).abs() <= 8 * torch.finfo(outputs.dtype).eps * clean.abs()
    return torch.where(near, clean, values.double())
