"""DeepLIFT: the difference to a baseline, passed back through the differences of every operation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from veridical.allowed import Count, Value
from veridical.explainers.base import register
from veridical.explainers.gradients import baseline_row, gradient, no_baseline
from veridical.explainers.graph.differences import Differences, Step
from veridical.explainers.graph.explainer import FollowingExplainer
from veridical.explainers.graph.followed import Followed
from veridical.explainers.laws import change_from
from veridical.explainers.prompts import at_response
from veridical.model.cost import Cost
from veridical.random import keyed
from veridical.random.keyed import Key
from veridical.values.task import Task

_START = "the baseline that differences are taken from"
_BEHIND = "rows lie behind other things on its first axis (time first, say); lay rows first"


@dataclass(frozen=True)
class _FromBaselines(FollowingExplainer):
    """Base: differences to a baseline row, which is set before each run."""

    def asked(self, task: Task) -> Task:
        return at_response(task)

    def follower(
        self, task: Task, model: Followed, x: Tensor, side: tuple[Any, ...], named: dict[str, Any]
    ) -> Differences:
        start: Tensor = model.kept.get(_START, x[:1].detach() * 0)
        if side or named:
            return Differences(x, _recorded(task, model, start.expand_as(x), side, named))
        # one run of the baseline serves all samples of the call
        known = model.kept.setdefault(id(start), (start, []))
        if not known[1]:
            known[1].append(_recorded(task, model, start, side, named))
        return Differences(x, known[1][0])

    def _tried(self, task: Task) -> None:
        super()._tried(task)
        if not task.side:
            task.uncounted(lambda: self._look_for_rows_behind(task))

    def _look_for_rows_behind(self, task: Task) -> None:
        """Refuse rows that lie behind other things on one axis: there one baseline cannot stand for each."""
        model, row = self.prepared(task).predictor.model, task.inputs[:1].detach()
        assert isinstance(model, Followed)
        with task.session(), torch.no_grad():
            one, two = Differences(row), Differences(row.expand(2, *row.shape[1:]))
            for run in (one, two):
                model.followed(run, run.x, (), {})
        for (name, single), (_, double) in zip(one.record, two.record, strict=True):
            for z0, z in zip(single, double, strict=True):
                if not torch.allclose(two._laid(name, z0, z), z, rtol=1e-2, atol=1e-3, equal_nan=True):
                    raise two.refused(f"operation '{name}'", _BEHIND)

    def between(self, task: Task, start: Tensor) -> Tensor:
        """The contribution of each element's difference to `start` (1 or n rows)."""
        model = task.predictor.model
        assert isinstance(model, Followed)
        model.kept[_START] = start
        return (task.inputs - start).mul_(gradient(task))


def _recorded(
    task: Task, model: Followed, start: Tensor, side: tuple[Any, ...], named: dict[str, Any]
) -> list[Step]:
    """What the model does at the baseline; its rows are counted."""
    with torch.no_grad():
        follower = Differences(start)
        model.followed(follower, start, side, named)
    task.predictor.meter.here.forward += len(start)
    return follower.record


@register
@dataclass(frozen=True)
class DeepLift(_FromBaselines):
    """Contributions to y_c(x) - y_c(x0) by the rescale rule; they sum to it.

    An activation multiplies what comes from above by (f(z) - f(z0)) / (z - z0), its slope between baseline
    and input, and by its gradient where z and z0 agree; a product of two activations gives each the mean of
    the other (see `explainers.graph.differences`). Max-pooling gives its change to the winners of both sides.
    Rows: each x forward and backward, and x0 forward, once per call, or once per sample where samples have
    side inputs of their own.
    """

    baseline: Value | Literal["mean"] = 0.0
    """The row that differences are taken to: one number everywhere, or "mean" of the reference rows."""
    name: ClassVar[str] = "deeplift"
    version: ClassVar[int] = 2
    summary: ClassVar[str] = "difference to a baseline, passed back by the rescale rule"
    paper: ClassVar[str] = "Shrikumar et al. 2017, section 3.5"
    law: ClassVar[str] = "values sum to y(x) - y(baseline)"

    def rows_per_sample(self, task: Task) -> int:
        return 2 if task.side else 1

    def declared(self, task: Task) -> Cost:
        return Cost(2 * len(task) if task.at_embeddings().side else len(task) + 1, len(task))

    def why_not(self, task: Task) -> str | None:
        return no_baseline(task, self.baseline) or super().why_not(task)

    def prepared(self, task: Task) -> Task:
        ready = super().prepared(task)
        model = ready.predictor.model
        assert isinstance(model, Followed)
        model.kept[_START] = baseline_row(ready, self.baseline)
        return ready

    def promised(self, task: Task, key: Key) -> Tensor:
        return change_from(task, lambda at: baseline_row(at, self.baseline))

    def attribute(self, task: Task, key: Key) -> Tensor:
        model = task.predictor.model
        assert isinstance(model, Followed)
        return self.between(task, model.kept[_START])


@register
@dataclass(frozen=True)
class DeepLiftShap(_FromBaselines):
    """The mean of DeepLIFT over reference rows as baselines: an approximation of Shapley values.

    The contributions of a sample sum to y_c(x) less the mean of y_c over the baselines. All reference rows
    are used where there are no more than `baselines`, else as many drawn without replacement, the same for
    all samples. Side inputs stay the sample's own. Rows: each x forward and backward once per baseline, and
    each baseline forward once per call, or once per sample where samples have side inputs.
    """

    baselines: Count = 16
    """The most reference rows used as baselines."""
    name: ClassVar[str] = "deeplift_shap"
    version: ClassVar[int] = 2
    summary: ClassVar[str] = "DeepLIFT averaged over reference rows as baselines"
    paper: ClassVar[str] = "Lundberg and Lee 2017, section 4.2"
    law: ClassVar[str] = "values sum to y(x) less the mean of y over the baselines"
    needs: ClassVar[frozenset[str]] = frozenset({"gradient", "train"})
    stochastic: ClassVar[bool] = True

    def draws_on(self, task: Task) -> bool:
        return task.train is not None and len(task.train) > self.baselines

    def declared(self, task: Task) -> Cost:
        assert task.train is not None
        starts = min(self.baselines, len(task.train))
        each = len(task) if task.at_embeddings().side else 1
        return Cost(starts * (len(task) + each), starts * len(task))

    def promised(self, task: Task, key: Key) -> Tensor:
        return change_from(task, lambda at: self.rows_of(at, key))

    def rows_of(self, task: Task, key: Key) -> Tensor:
        """The baselines (k, *input shape)."""
        assert task.train is not None
        if not self.draws_on(task):
            return task.train
        once = torch.zeros(1, dtype=torch.int64, device=task.device)
        order = keyed.uniform(key / "baselines", once, once, len(task.train))[0, 0].argsort()
        return task.train[order[: self.baselines].sort().values]

    def attribute(self, task: Task, key: Key) -> Tensor:
        model = task.predictor.model
        assert isinstance(model, Followed)
        rows = model.kept.setdefault("rows", self.rows_of(task, key).split(1))
        total = torch.zeros_like(task.inputs)
        for start in rows:
            total += self.between(task, start)
        return total / len(rows)
