"""Scoring under every perturbation: each explanation is made once there and serves all metrics."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from veridical.core.key import Key
from veridical.core.progress import track
from veridical.errors import InputError, warn
from veridical.explainers import Explainer
from veridical.fidelity.artefact import Finetuned
from veridical.fidelity.metrics import FFid, Fidelity
from veridical.meta.consistency import MIN_SAMPLES
from veridical.meta.dependence import (
    NEGLIGIBLE,
    altered,
    altering,
    dependence,
    reach,
    share_of_changes,
    standing_in,
)
from veridical.meta.perturbations import Mode, Perturbation, Test, held, outputs_of, unperturbed
from veridical.meta.result import MetricScores
from veridical.meta.sanity import UNPERTURBED
from veridical.metrics.base import AnyMetric, ExplainerMetric, Metric
from veridical.models.context import Memo
from veridical.models.cost import Cost
from veridical.values.evaluation import Failure
from veridical.values.explanation import Explanation
from veridical.values.task import Task


def settled(metric: AnyMetric, task: Task) -> AnyMetric:
    """The metric with its fine-tuned model made, once, for the unperturbed task."""
    if isinstance(metric, FFid) and metric.finetuned is None:
        return replace(metric, finetuned=metric.artefact(task))
    return metric


def with_finetuned(
    metrics: Iterable[AnyMetric], clean: Task, perturbed: Task, perturb: Callable[[Task], Task]
) -> Task:
    """The perturbed task, with the metrics' fine-tuned models under the same noise."""
    companions = {}
    for metric in metrics:
        artefact: Any = metric.finetuned if isinstance(metric, Fidelity) else None
        if isinstance(artefact, Finetuned):
            copy = artefact.on(clean)
            if perturbed.inputs.dtype == clean.inputs.dtype:
                companions[artefact.path] = perturb(copy)
    outputs, estimates = perturbed.known_outputs, perturbed.estimates
    return perturbed.changed(companions=companions, outputs=outputs, estimates=estimates)


def recalled(inner: Explainer, kept: Explanation, of: Task) -> Explainer:
    """An explainer that gives a finished explanation for one task, exactly as it stands.

    Elsewhere (a neighbouring input, other weights, another class) it explains as ever.
    """

    def explain(task: Task, key: Key, memo: Memo | None) -> Explanation:
        same = (
            task.predictor.weights is of.predictor.weights
            and task.predictor.wraps == of.predictor.wraps
            and torch.equal(task.ids, of.ids)
            and torch.equal(task.targets, of.targets)
            and torch.equal(task.inputs, of.inputs)
        )
        return kept if same else inner(task, key, memo)

    return standing_in(inner, explain)


@dataclass(eq=False)
class ScoringRun:
    """The state of one meta-evaluation while its perturbations are scored."""

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
    score_all: bool = False
    """Whether perturbations in which too few samples count are scored all the same."""
    scores: dict[str, MetricScores] = field(default_factory=dict)
    kept: dict[tuple[Test, Mode], Tensor] = field(default_factory=dict)
    explanations: int = 0
    explanation_cost: Cost = field(default_factory=Cost)
    failures: list[Failure] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    interrupted: bool = False
    bases: dict[Test, Task] = field(default_factory=dict)
    old_maps: dict[str, Explanation] = field(default_factory=dict)
    to_reach: dict[str, tuple[str, str, Tensor, Tensor]] = field(default_factory=dict)
    memo: Memo = field(default_factory=Memo)
    """What the scores of the present perturbation have in common."""

    def run(self, perturbations: list[Perturbation], progress: bool | None) -> None:
        """Score the unperturbed task, then every perturbed one, an iteration after the other."""
        runs, samples = (len(self.iterations), self.draws), len(self.task)
        places = list(dict.fromkeys((each.test, each.mode) for each in perturbations))
        self.kept = {place: torch.zeros((*runs, samples), dtype=torch.bool) for place in places}
        nothing = torch.full((*runs, len(self.explainers), samples), torch.nan, dtype=torch.float64)
        for label, metric in list(self.metrics.items()):
            self.scores[label] = MetricScores(
                label,
                metric.category,
                metric.better,
                {test: nothing[0, 0].clone() for test in self.tests},
                {place: nothing.clone() for place in places},
            )
            with self._guarded(label):
                self.metrics[label] = settled(metric, self.task)
        try:
            self._score_unperturbed()
            for each in track(perturbations, "meta-evaluating", progress):
                self._score_perturbed(each)
        except KeyboardInterrupt:
            self.interrupted = True
            warn("interrupted; the finished perturbations are kept")

    # --- one perturbation ----------------------------------------------------------------------------------

    def _score_unperturbed(self) -> None:
        """Score the task as it is; text also at its embeddings, where inputs move."""
        on_inputs = [test for test in self.tests if test != "mpt"]
        moved = unperturbed(self.task, on_inputs[0]) if on_inputs else self.task
        if moved is not self.task:
            # what was calibrated on tokens holds at their embeddings
            moved.estimates.update(self.task.estimates)
            moved = with_finetuned(self.metrics.values(), self.task, moved, partial(unperturbed, test="ipt"))
        self.bases = {test: self.task if test == "mpt" else moved for test in self.tests}
        for base in dict.fromkeys(self.bases.values()):
            self._score_base(base, [test for test in self.tests if self.bases[test] is base])

    def _score_base(self, base: Task, tests: list[Test]) -> None:
        self.memo = Memo()
        key = self.root / UNPERTURBED
        maps = {who: self._explain(method, base, key) for who, method in self.explainers.items()}
        if "ipt" in tests:
            self.old_maps = maps
        for label in list(self.metrics):
            with self._guarded(label):
                scores = self._scores(label, base, self.explainers, maps, key)
                for test in tests:
                    self.scores[label].unperturbed[test][:] = torch.stack(list(scores.values())).cpu()
                if tests[0] == self.tests[0]:
                    self._check_dependence(label, base, maps, key, scores)

    def _score_perturbed(self, perturbation: Perturbation) -> None:
        self.memo = Memo()
        test, mode, draw = perturbation.test, perturbation.mode, perturbation.draw
        place, row = (test, mode), self.iterations.index(perturbation.iteration)
        made = perturbation.of(self.task, self.root, self.published)
        outputs = outputs_of(made)
        same = held(self.task, outputs, self.epsilon)
        kept = (same if mode == "nr" else ~same) & outputs.isfinite().all(-1)
        self.kept[place][row, draw] = kept.cpu()
        if not bool(outputs.isfinite().all()):
            where = f"{test} {mode}, iteration {perturbation.iteration}, draw {draw}"
            self.broken.append(f"{where}: the outputs contain NaN or infinity and cannot be scored")
            return
        if int(kept.sum()) < MIN_SAMPLES and not self.score_all:
            return
        base, key = self.bases[test], perturbation.key(self.root)
        # what a metric has calibrated belongs to its settings and stays that of the unperturbed task
        made = made.changed(outputs=outputs, estimates=dict(base.estimates))
        keep_maps = self.published and test == "ipt"
        # no other sample counts; old maps are those of all samples
        some = torch.arange(len(made), device=made.device)
        if not keep_maps and not bool(kept.all()):
            some = kept.nonzero()[:, 0]
            made = made[some]

        def again(task: Task) -> Task:
            return perturbation.of(task, self.root, self.published)[some]

        made = with_finetuned(self.metrics.values(), self.task, made, again)
        methods = dict(self.explainers)
        if keep_maps:
            drawn = {w: self._explain(m, base, key) for w, m in methods.items() if m._draws_on(base)}
            maps = self.old_maps | drawn
            methods = {who: recalled(method, maps[who], made) for who, method in methods.items()}
        else:
            maps = {who: self._explain(method, made, key) for who, method in methods.items()}
        for label in list(self.metrics):
            with self._guarded(label):
                scores = self._scores(label, made, methods, maps, key)
                table, places = self.scores[label], some.cpu()
                found = torch.stack(list(scores.values())).double().cpu()
                if len(some) < len(kept):
                    found = _unmoved(found, table.unperturbed[test][:, places], outputs)
                table.perturbed[place][row, draw][:, places] = found
                if mode == "ar" and test == self.tests[0]:
                    self._check_reach(label, made, maps, key, scores)

    def _explain(self, explainer: Explainer, task: Task, key: Key) -> Explanation:
        explanation = explainer(task, key / "explain", self.memo)
        self.explanations += 1
        self.explanation_cost = self.explanation_cost + explanation.cost
        return explanation

    def _scores(
        self,
        label: str,
        task: Task,
        methods: Mapping[str, Explainer],
        maps: Mapping[str, Explanation],
        key: Key,
        counted: bool = True,
    ) -> dict[str, Tensor]:
        """The scores of every explainer by one metric, which may share work between them."""
        metric = self.metrics[label]
        own = (self.root / UNPERTURBED if label in self.fixed else key) / "score"
        found: Mapping[str, Any] = {}
        if isinstance(metric, ExplainerMetric):
            found = dict(metric.score_all(task, methods, own, self.memo))
        elif isinstance(metric, Metric):
            found = {who: metric(task, maps[who], own, self.memo) for who in methods}
        else:
            raise InputError(f"'{label}' scores neither maps nor methods")
        for scores in found.values():
            if isinstance(scores, Exception):
                raise scores
            if counted:
                self.scores[label].cost = self.scores[label].cost + scores.cost
        return {who: scores.values for who, scores in found.items()}

    @contextmanager
    def _guarded(self, label: str) -> Iterator[None]:
        """A metric that raises is left out from then on, with its traceback kept; the others go on."""
        try:
            yield
        except Exception as error:
            self.failures.append(Failure("", label, str(error), traceback.format_exc()))
            warn(f"metric '{label}' failed and is left out: {error}")
            del self.metrics[label], self.scores[label]

    # --- does it read the map? ----------------------------------------------------------------------

    def _other_scores(
        self, label: str, how: str, who: Iterable[str], task: Task, maps: Mapping[str, Explanation], key: Key
    ) -> dict[str, Tensor]:
        """The scores of altered maps; what they ask is no part of what the evaluation costs."""
        methods = {w: altering(self.explainers[w], how) for w in who}
        other = {w: altered(maps[w], how, self.root / how) for w in methods}
        return self._scores(label, task, methods, other, key, counted=False) if methods else {}

    def _check_dependence(
        self, label: str, task: Task, maps: Mapping[str, Explanation], key: Key, scores: Mapping[str, Tensor]
    ) -> None:
        """What permuted maps of the unperturbed task do, and random ones where those do nothing."""
        permuted = self._other_scores(label, "permuted", maps, task, maps, key)
        checks = {who: dependence(scores[who], permuted[who]) for who in maps}
        unmoved = [who for who, check in checks.items() if not check.permuted > NEGLIGIBLE]
        replaced = self._other_scores(label, "replaced", unmoved, task, maps, key)
        for who, after in replaced.items():
            checks[who] = replace(checks[who], replaced=share_of_changes(scores[who], after))
        self.scores[label].checks = checks
        first = next(iter(maps))
        how, after = ("replaced", replaced[first]) if first in replaced else ("permuted", permuted[first])
        self.to_reach[label] = first, how, scores[first], after

    def _check_reach(
        self, label: str, task: Task, maps: Mapping[str, Explanation], key: Key, scores: Mapping[str, Tensor]
    ) -> None:
        """The same in the first disrupted task, where samples lie apart by their predictions."""
        if label not in self.to_reach:
            return
        who, how, clean, clean_other = self.to_reach.pop(label)
        other = self._other_scores(label, how, [who], task, maps, key)[who]
        found = reach(torch.cat([clean, scores[who]]), torch.cat([clean_other, other]))
        self.scores[label].checks[who] = replace(self.scores[label].checks[who], reach=found)


def _unmoved(values: Tensor, clean: Tensor, outputs: Tensor) -> Tensor:
    """Scores, where those that other batches moved by their last bits alone are the unperturbed ones."""
    near = (values - clean).abs() <= 8 * torch.finfo(outputs.dtype).eps * clean.abs()
    return torch.where(near, clean, values.double())
