"""DeepLIFT: the difference to a baseline, passed back through the differences of every operation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from veridical.core import key as keyed
from veridical.core.allowed import Count, Value
from veridical.core.key import Key
from veridical.errors import NotApplicableError
from veridical.explainers.base import register, selected
from veridical.explainers.gradients import baseline_row, no_baseline, slope, told
from veridical.explainers.graph.differences import Differences, Record, apart, scattered
from veridical.explainers.graph.explainer import FollowingExplainer
from veridical.explainers.graph.followed import Followed
from veridical.explainers.laws import change_from
from veridical.explainers.prompts import at_response
from veridical.models.cost import Cost
from veridical.models.predictor import call
from veridical.models.sessions import Session
from veridical.values.task import Task

_STARTS, _RECORDS, _RUN = "baselines", "what the model does at each of them", "the run of x"


@dataclass(frozen=True)
class _FromBaselines(FollowingExplainer):
    """Base: the mean, over baselines, of the contributions of differences to them. x runs once for all."""

    def asked(self, task: Task) -> Task:
        return at_response(task)

    def starts(self, task: Task, key: Key) -> Tensor:
        """The baselines (k, *input shape)."""
        raise NotApplicableError(f"explainer '{self.name}' does not say what its baselines are")

    def promised(self, task: Task, key: Key) -> Tensor:
        return change_from(task, lambda at: self.starts(at, key))

    def follower(
        self, task: Task, model: Followed, x: Tensor, side: tuple[Any, ...], named: dict[str, Any]
    ) -> Differences:
        starts: Tensor = model.kept[_STARTS] if _STARTS in model.kept else x[:1].detach() * 0
        if side or named:
            # each as a sample's own: one at a time, when it is its turn
            records = (_recorded(task, model, start.expand_as(x), side, named) for start in starts.split(1))
        else:
            # made once for all samples of the call
            if _RECORDS not in model.kept:
                model.kept[_RECORDS] = _each(task, model, starts, max(len(x), task.predictor.padded_to))
            records = iter(model.kept[_RECORDS])
        run = Differences(x, next(records))
        model.kept[_RUN] = run, records
        return run

    def _tried(self, task: Task) -> None:
        super()._tried(task)
        if task.side:
            return  # a baseline has as many rows as there are samples, so each lies as the sample does
        model, one = self.prepared(task).predictor.model, task.inputs[:1].detach()
        assert isinstance(model, Followed)

        def ask() -> str | None:
            with task.session():
                pair = _recorded(task, model, torch.cat([one, one * 0.5]))
                return scattered(pair, _recorded(task, model, one))

        name = task.uncounted(ask)
        if name is not None:
            raise NotApplicableError(
                f"{Differences.method} has no rule for operation '{name}': several things of each row lie "
                "along one axis, and those of a row not side by side (time first, say); lay rows first"
            )

    def attribute(self, task: Task, key: Key) -> Tensor:
        model = task.predictor.model
        assert isinstance(model, Followed)
        if _STARTS not in model.kept:
            model.kept[_STARTS] = self.starts(task, key)
        starts = model.kept[_STARTS].split(1)
        with Session(task.predictor, grad=True) as asked:
            rows = task.inputs.detach().requires_grad_(True)
            outputs = call(asked, rows, task.side)
            told(task, outputs)
            way = selected(outputs, task.targets).sum(), rows
            run, records = model.kept.pop(_RUN)
            total = torch.zeros_like(task.inputs)
            for at, start in enumerate(starts):
                if at:
                    run.before = next(records)
                run.again = at + 1 < len(starts)
                total += (task.inputs - start).mul_(slope(*way, run.again))
        return total / len(starts)


def _each(task: Task, model: Followed, starts: Tensor, most: int) -> list[Record]:
    """What the model does at each baseline, asked `most` at a time; the first, alone, tells how rows lie."""
    first = _recorded(task, model, starts[:1])
    out = [first]
    for rows in starts[1:].split(most) if len(starts) > 1 else ():
        together = _recorded(task, model, rows)
        out += apart(together, first, len(rows)) if len(rows) > 1 else [together]
    return out


def _recorded(
    task: Task,
    model: Followed,
    start: Tensor,
    side: tuple[Any, ...] = (),
    named: dict[str, Any] | None = None,
) -> Record:
    """What the model does at baselines; their rows are counted."""
    with torch.no_grad():
        follower = Differences(start)
        model.followed(follower, start, side, named or {})
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
        model.kept[_STARTS] = baseline_row(ready, self.baseline)
        return ready

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
    law: ClassVar[str] = "values sum to y(x) less the mean of y over the baselines"
    needs: ClassVar[frozenset[str]] = frozenset({"gradient", "train"})
    stochastic: ClassVar[bool] = True

    def draws_on(self, task: Task) -> bool:
        return task.train is not None and len(task.train) > self.baselines

    def declared(self, task: Task) -> Cost:
        assert task.train is not None
        starts = min(self.baselines, len(task.train))
        each = len(task) if task.at_embeddings().side else 1
        return Cost(len(task) + starts * each, starts * len(task))

    def starts(self, task: Task, key: Key) -> Tensor:
        assert task.train is not None
        if not self.draws_on(task):
            return task.train
        once = torch.zeros(1, dtype=torch.int64, device=task.device)
        order = keyed.uniform(key / "baselines", once, once, len(task.train))[0, 0].argsort()
        return task.train[order[: self.baselines].sort().values]
