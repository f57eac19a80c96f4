"""DeepLIFT: the difference to a baseline, passed back through the differences of every operation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from veridical.core import key as keyed
from veridical.core.allowed import Count, Value
from veridical.core.key import Key
from veridical.errors import NotApplicableError
from veridical.explainers.base import keep_outputs, register, selected
from veridical.explainers.diagnostics import difference_from_baselines
from veridical.explainers.gradients import baseline_row, input_gradient, no_baseline
from veridical.explainers.layout import at_response
from veridical.explainers.trace.differences import Differences, Record, apart, scattered
from veridical.explainers.trace.tracer import TracingExplainer, traced_outputs
from veridical.models.context import Context
from veridical.models.cost import Cost
from veridical.values.task import Task


@dataclass(frozen=True)
class _FromBaselines(TracingExplainer):
    """Base: the mean, over baselines, of the contributions of differences to them. x runs once for all."""

    def traced_task(self, task: Task) -> Task:
        return at_response(task)

    def starts(self, task: Task, key: Key) -> Tensor:
        """The baselines (k, *input shape)."""
        raise NotApplicableError(f"explainer '{self.name}' does not say what its baselines are")

    def baseline_count(self, task: Task) -> int:
        """How many baselines there are."""
        return 1

    def _declared(self, task: Task) -> Cost:
        count = self.baseline_count(task)
        each = len(task) if task.at_embeddings().side else 1
        return Cost(len(task) + count * each, count * len(task))

    def _expected_sum(self, task: Task, key: Key) -> Tensor:
        return difference_from_baselines(task, lambda at: self.starts(at, key))

    def tracer(self, task: Task, x: Tensor) -> Differences:
        """For the trial of a model: differences to zeros."""
        start = x[:1].detach() * 0
        return Differences(x, _recorded(task, start.expand_as(x) if task.side else start))

    def _try(self, task: Task) -> None:
        super()._try(task)
        if task.side:
            return  # a baseline has as many rows as there are samples, so each lies as the sample does
        ready, one = self._prepared(task), task.inputs[:1].detach()

        def evaluate() -> str | None:
            with task.session():
                return scattered(_recorded(ready, torch.cat([one, one * 0.5])), _recorded(ready, one))

        name = task.uncounted(evaluate)
        if name is not None:
            raise NotApplicableError(
                f"{Differences.method} has no rule for operation '{name}': several things of each row lie "
                "along one axis, and those of a row not side by side (time first, say); lay rows first"
            )

    def attribute(self, task: Task, context: Context) -> Tensor:
        starts = self.starts(task, context.key)
        with task.session(grad=True):
            rows = task.inputs.detach().requires_grad_(True)
            records = _records(task, starts, context)
            tracer = Differences(rows, next(records))
            outputs = traced_outputs(task, tracer)
            keep_outputs(context, task, outputs)
            explained, total = selected(outputs, task.targets).sum(), torch.zeros_like(task.inputs)
            for at, start in enumerate(starts.split(1)):
                if at:
                    tracer.before = next(records)
                slopes = input_gradient(explained, rows, again=at + 1 < len(starts))
                total += (task.inputs - start).mul_(slopes)
        return total / len(starts)


def _records(task: Task, starts: Tensor, context: Context) -> Iterator[Record]:
    """What the model does at each baseline: once for all parts of a call where there are no side inputs."""
    if task.side:
        # each beside a sample's own: one at a time, when it is its turn
        return (_recorded(task, start.expand_as(task.inputs)) for start in starts.split(1))
    most = max(len(task), task.predictor.padded_to)
    # one context serves all pieces of one call, and no other call
    return iter(context.memo.once(context, "records of baselines", lambda: _each(task, starts, most)))


def _each(task: Task, starts: Tensor, most: int) -> list[Record]:
    """What the model does at each baseline, `most` at a time; the first, alone, shows how rows lie."""
    first = _recorded(task, starts[:1])
    out = [first]
    for rows in starts[1:].split(most) if len(starts) > 1 else ():
        together = _recorded(task, rows)
        out += apart(together, first, len(rows)) if len(rows) > 1 else [together]
    return out


def _recorded(task: Task, start: Tensor) -> Record:
    """What the model does at baselines."""
    with torch.no_grad():
        tracer = Differences(start)
        traced_outputs(task, tracer)
    return tracer.record


@register
@dataclass(frozen=True)
class DeepLift(_FromBaselines):
    """Contributions to y_c(x) - y_c(x0) by the rescale rule; they sum to it.

    An activation multiplies what comes from above by (f(z) - f(z0)) / (z - z0), its slope between baseline
    and input, and by its gradient where z and z0 agree; a product of two activations gives each the mean of
    the other (see `explainers.trace.differences`). Max-pooling gives its change to the winners of both sides.
    Rows: each x forward and backward, and x0 forward, once per call, or once per sample where samples have
    side inputs of their own.
    """

    baseline: Value | Literal["mean"] = 0.0
    """The row that differences are taken to: one number everywhere, or "mean" of the reference rows."""
    name: ClassVar[str] = "deeplift"
    version: ClassVar[int] = 2
    summary: ClassVar[str] = "difference to a baseline, passed back by the rescale rule"
    paper: ClassVar[str] = "Shrikumar et al. 2017, section 3.5"
    completeness: ClassVar[str] = "values sum to y(x) - y(baseline)"

    def rows_per_sample(self, task: Task) -> int:
        return 2 if task.side else 1

    def inapplicable_reason(self, task: Task) -> str | None:
        return no_baseline(task, self.baseline) or super().inapplicable_reason(task)

    def starts(self, task: Task, key: Key) -> Tensor:
        return baseline_row(task, self.baseline)


@register
@dataclass(frozen=True)
class DeepLiftShap(_FromBaselines):
    """The mean of DeepLIFT over reference rows as baselines: an approximation of Shapley values.

    The contributions of a sample sum to y_c(x) less the mean of y_c over the baselines. All reference rows
    are used where there are no more than `baselines`, else as many drawn without replacement, the same for
    all samples. Side inputs stay the sample's own. Rows: each x forward once, and backward once per baseline;
    each baseline forward once per call, or once per sample where samples have side inputs.
    """

    baselines: Count = 16
    """The most reference rows used as baselines."""
    name: ClassVar[str] = "deeplift_shap"
    version: ClassVar[int] = 2
    summary: ClassVar[str] = "DeepLIFT averaged over reference rows as baselines"
    paper: ClassVar[str] = "Lundberg and Lee 2017, section 4.2"
    completeness: ClassVar[str] = "values sum to y(x) less the mean of y over the baselines"
    needs: ClassVar[frozenset[str]] = frozenset({"gradient", "train"})
    stochastic: ClassVar[bool] = True

    def _draws_on(self, task: Task) -> bool:
        return task.train is not None and len(task.train) > self.baselines

    def baseline_count(self, task: Task) -> int:
        assert task.train is not None
        return min(self.baselines, len(task.train))

    def starts(self, task: Task, key: Key) -> Tensor:
        assert task.train is not None
        if not self._draws_on(task):
            return task.train
        once = torch.zeros(1, dtype=torch.int64, device=task.device)
        order = keyed.uniform(key / "baselines", once, once, len(task.train))[0, 0].argsort()
        return task.train[order[: self.baselines].sort().values]
