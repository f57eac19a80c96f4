"""Other models in the place of the audited one: a map must fit the model it was made for, and no other.

Sample i meets copy i mod 4. Half one: maps of the model against maps of the copy for the same class, judged
on the model. Half two: maps of the copy against maps of the model for the class the copy predicts, judged on
the copy; a map that falls apart when the model changes wins half one and loses half two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from veridical.audit.jobs import Done, Job
from veridical.errors import VeridicalError
from veridical.explainers import Explainer
from veridical.explainers.laws import change_from_nothing
from veridical.functional.grid import grid_step
from veridical.metrics import Metric
from veridical.model.other_models import estimate_batch_norm, noisy, reinitialised
from veridical.model.predictor import Output, take_side
from veridical.random.keyed import Key
from veridical.values.task import Task

COPIES = 4
STEPS = 100
"""Grid steps that the response of a copy moves, at least, when everything is masked."""
SHARE = 0.1
"""The share of samples in which it may move less."""
NORM_ROWS = 256
"""Rows from which copies estimate the statistics of batch normalisation."""


GAP = 2.0
"""By how much a copy's strongest output leads, in the median: probabilities then follow what is removed.

Fresh weights may put outputs far apart; every probability would be 1 whatever is masked, and maps tie.
"""


class Copies(NamedTuple):
    """Other models of the same shape, what their outputs are multiplied by, and how they came about."""

    modules: tuple[nn.Module, ...]
    factors: tuple[float, ...]
    kind: str


@dataclass(frozen=True)
class Scaled:
    """A reading of a model's answers, times a factor."""

    output: Output
    """How answers are read."""
    factor: float
    """What they are multiplied by."""

    def __call__(self, answer: Any) -> Tensor:
        return self.output(answer) * self.factor


def other_models(task: Task, seed: int) -> tuple[Copies | None, str]:
    """Four copies with fresh weights, or noisy ones where those answer the same to every mask; and why."""
    source = task.predictor.source
    if source.shared or not any(p.is_floating_point() for p in source.module.parameters()):
        return None, "the model has no weights that torch can see, so no other model of its shape can be made"
    makers: dict[str, Callable[[nn.Module, Key], nn.Module]] = {
        "re-initialised": reinitialised,
        "noisy": noisy,
    }
    reasons = []
    for kind, make in makers.items():
        try:
            made = [_copy(task, make, Key(seed) / "audit" / "swap" / kind / k) for k in range(COPIES)]
            why = next((said for module in made if (said := _degenerate(task, module))), "")
        except (VeridicalError, RuntimeError) as error:
            why = f"they cannot be asked: {error}"
        if not why:
            note = "".join(f"re-initialised copies are no use here: {reason}" for reason in reasons)
            return Copies(tuple(made), tuple(_factor(task, module) for module in made), kind), note
        reasons.append(why)
    return None, f"neither re-initialised nor noisy copies of the model can be used: {'; '.join(reasons)}"


def _copy(task: Task, make: Callable[[nn.Module, Key], nn.Module], key: Key) -> nn.Module:
    made = task.predictor.source.copied().eval()
    rows, side = (task.inputs, task.side) if task.train is None else (task.train, task.train_side)
    some = slice(0, NORM_ROWS)
    made = make(made, key)
    return estimate_batch_norm(made, rows[some], take_side(side, some))


def _factor(task: Task, module: nn.Module) -> float:
    """What puts a copy's strongest output ahead by `GAP`; a regression's outputs stay as they are."""
    if task.head == "regression":
        return 1.0
    found = on(task, module).outputs.double()
    if task.head == "multiclass":
        first, second = found.topk(2, -1).values.unbind(-1)
        return GAP / max(float((first - second).median()), 1e-12)
    return GAP / max(float(found.abs().amax(-1).median()), 1e-12)


def _degenerate(task: Task, module: nn.Module) -> str:
    """Why a copy cannot judge maps: masks hardly move its answer."""
    there = on(task, module)
    moved = there.uncounted(lambda: change_from_nothing(there, Key(0) / "swap"))
    size = there.outputs.abs().amax().double()
    step = grid_step(task.predictor.rounding or there.outputs.dtype) * size
    still = float((moved.abs() < STEPS * step).double().mean())
    if still <= SHARE:
        return ""
    return f"masking everything leaves the answer of a copy where it was in {still:.0%} of the samples"


def on(task: Task, module: nn.Module, factor: float = 1.0) -> Task:
    """The task answered by another model, for the class that one predicts."""
    output = Scaled(task.predictor.output, factor) if factor != 1.0 else None
    return task.with_module(module, output).changed(alone=True, targets="predicted")


class Pairing(NamedTuple):
    """Some samples under the audited model and under the copy they meet, each for either's class."""

    rows: Tensor
    copy: int
    mine: Task
    theirs: Task
    theirs_for_my_class: Task
    mine_for_their_class: Task


def pairings(look: Task, start: int, copies: Copies) -> list[Pairing]:
    """The samples of a look, the first of which is number `start`, divided among the copies."""
    out = []
    for k, (module, factor) in enumerate(zip(copies.modules, copies.factors, strict=True)):
        rows = torch.tensor([i for i in range(len(look)) if (start + i) % COPIES == k])
        if not len(rows):
            continue
        mine = look[rows]
        theirs = on(mine, module, factor)
        theirs = theirs.with_targets(theirs.predictions)
        out.append(
            Pairing(
                rows, k, mine, theirs, theirs.with_targets(mine.targets), mine.with_targets(theirs.targets)
            )
        )
    return out


def swap_jobs(
    label: str, explainer: Explainer, metrics: Mapping[str, Metric], pairs: Sequence[Pairing], place: str
) -> list[Job]:
    """Three jobs for every copy: its map judged here, its own map judged there, our map judged there."""
    return [
        Job(label, explainer, metrics, made, judged, f"{place}, copy {pair.copy}: {what}")
        for pair in pairs
        for what, made, judged in (
            ("theirs here", pair.theirs_for_my_class, pair.mine),
            ("theirs there", pair.theirs, pair.theirs),
            ("ours there", pair.mine_for_their_class, pair.theirs),
        )
    ]


def in_order(pairs: Sequence[Pairing], done: Sequence[Done], which: int) -> tuple[Tensor, list[Done]]:
    """Where the samples of one of the three kinds of jobs belong, and those jobs."""
    return torch.cat([pair.rows for pair in pairs]).argsort(), list(done[which::3])
