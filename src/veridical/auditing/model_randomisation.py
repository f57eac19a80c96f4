"""The model randomisation test: do maps fit this model, and not a copy with other weights?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from veridical.auditing.evidence import Grid, SampleScores, joined, units
from veridical.auditing.jobs import Done, Job, elsewhere
from veridical.core.key import Key
from veridical.errors import InputError, VeridicalError
from veridical.explainers import Explainer
from veridical.explainers.controls import InputMagnitude
from veridical.explainers.diagnostics import difference_from_empty
from veridical.functional.responses import grid_step
from veridical.metrics import Metric
from veridical.models.adapters import adapt
from veridical.models.cost import Cost
from veridical.models.other_models import estimate_batch_norm, noisy, reinitialised
from veridical.models.predictor import Output, call, take_side
from veridical.values.explanation import Explanation
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
    """A model's outputs, times a factor."""

    output: Output
    """How outputs are read from what the model returns."""
    factor: float
    """What they are multiplied by."""

    def __call__(self, returned: Any) -> Tensor:
        return self.output(returned) * self.factor


def other_models(task: Task, seed: int) -> tuple[Copies | None, str]:
    """Four copies with fresh weights, or noisy ones where masks do not move those; and why."""
    source = task.predictor.source
    if source.shared or not any(p.is_floating_point() for p in source.module.parameters()):
        return None, (
            "the model has no weights that torch can see, so no other model of its shape can be made; models "
            "of its kind trained on shuffled labels would do, given as others=[...]"
        )
    makers: dict[str, Callable[[nn.Module, Key], nn.Module]] = {
        "re-initialised": reinitialised,
        "noisy": noisy,
    }
    reasons: list[str] = []
    for kind, make in makers.items():
        try:
            made = [_copy(task, make, Key(seed) / "audit" / "swap" / kind / k) for k in range(COPIES)]
            why = next((reason for module in made if (reason := _degenerate(task, module))), "")
        except (VeridicalError, RuntimeError) as error:
            why = f"they cannot be evaluated: {error}"
        if not why:
            note = "".join(f"re-initialised copies are no use here: {reason}" for reason in reasons)
            return Copies(tuple(made), tuple(_factor(task, module) for module in made), kind), note
        reasons.append(why)
    return None, f"neither re-initialised nor noisy copies of the model can be used: {'; '.join(reasons)}"


def given_models(task: Task, others: Sequence[Any]) -> Copies:
    """Models that the caller made for the test, such as those of the same kind trained on shuffled labels."""
    if not isinstance(others, list | tuple) or not others:
        raise InputError(
            f"others is a list of models of the same question, at least one; got {type(others).__name__}"
        )
    own = task.predictor.source.module
    codec, side = getattr(own, "codec", None), take_side(task.side, slice(0, 1))
    output, rows = task.predictor.output, task.inputs if task.train is None else task.train
    made = []
    for number, other in enumerate(others):
        module = adapt(other, lambda f, row: output(call(f, row, side)), task.inputs[:1], codec, rows)[0]
        try:
            found, why = on(task, module).outputs, _degenerate(task, module)
        except (VeridicalError, RuntimeError, ValueError) as error:
            raise InputError(f"model {number} of others cannot be evaluated on this task: {error}") from error
        if found.shape[-1] != task.n_outputs:
            why = f"it has {found.shape[-1]} outputs, and the model audited has {task.n_outputs}"
        if why:
            raise InputError(f"model {number} of others cannot distinguish maps: {why}")
        made.append(module.eval())
    return Copies(tuple(made), tuple(_factor(task, module) for module in made), "given")


def _copy(task: Task, make: Callable[[nn.Module, Key], nn.Module], key: Key) -> nn.Module:
    made = task.predictor.source.copied().eval()
    rows, side = (task.inputs, task.side) if task.train is None else (task.train, task.train_side)
    some = slice(0, NORM_ROWS)
    made = make(made, key)
    return estimate_batch_norm(made, rows[some], take_side(side, some))


def _factor(task: Task, module: nn.Module) -> float:
    """What puts a copy's strongest output ahead by `GAP`; a regression's outputs stay as they are."""
    if task.head in ("regression", "generation"):
        return 1.0
    found = on(task, module).outputs.double()
    if task.head == "multiclass":
        first, second = found.topk(2, -1).values.unbind(-1)
        return GAP / max(float((first - second).median()), 1e-12)
    return GAP / max(float(found.abs().amax(-1).median()), 1e-12)


def _degenerate(task: Task, module: nn.Module) -> str:
    """Why a copy cannot distinguish maps: its outputs are the model's, or masks hardly move them."""
    there = on(task, module)
    step = grid_step(task.predictor.rounding or there.outputs.dtype)

    def still(moved: Tensor) -> float:
        size = there.outputs.abs().amax().double()
        return float((moved.abs() <= STEPS * step * size).double().mean())

    if there.outputs.shape == task.outputs.shape:
        same = still((there.outputs - task.outputs).double().abs().amax(-1))
        if same > SHARE:
            return f"the outputs of a copy are those of the model in {same:.0%} of the samples"
    empty = still(there.uncounted(lambda: difference_from_empty(there, Key(0) / "swap")))
    if empty > SHARE:
        return f"masking everything leaves the output of a copy as it was in {empty:.0%} of the samples"
    return ""


def on(task: Task, module: nn.Module, factor: float = 1.0) -> Task:
    """The task with another model, for the class that one predicts."""
    output = Scaled(task.predictor.output, factor) if factor != 1.0 else None
    return task.with_module(module, output).changed(alone=True, targets="predicted")


class Pairing(NamedTuple):
    """Some samples under the audited model and under the copy they meet, each for the class it predicts.

    Where both predict the same class, maps for the other's class are those at hand: `split` holds in which
    samples they do not, and the last four tasks are about those alone.
    """

    rows: Tensor
    copy: int
    mine: Task
    theirs: Task
    split: Tensor
    split_mine: Task | None = None
    split_theirs: Task | None = None
    theirs_for_my_class: Task | None = None
    mine_for_their_class: Task | None = None


def pairings(batch: Task, start: int, copies: Copies) -> list[Pairing]:
    """The samples of a stage, the first of which is number `start`, divided among the copies."""
    out = []
    for k, (module, factor) in enumerate(zip(copies.modules, copies.factors, strict=True)):
        numbers = torch.arange(len(batch), device=batch.device)
        rows = numbers[(start + numbers) % len(copies.modules) == k]
        if not len(rows):
            continue
        mine = batch[rows]
        theirs = on(mine, module, factor)
        theirs = theirs.with_targets(theirs.predictions)
        split = (theirs.targets != mine.targets).nonzero()[:, 0]
        if not len(split):
            out.append(Pairing(rows, k, mine, theirs, split))
            continue
        some = (mine, theirs) if len(split) == len(rows) else (mine[split], theirs[split])
        both = some[1].with_targets(some[0].targets), some[0].with_targets(some[1].targets)
        out.append(Pairing(rows, k, mine, theirs, split, *some, *both))
    return out


def randomisation_jobs(
    label: str,
    explainer: Explainer,
    metrics: Mapping[str, Metric],
    pairs: Sequence[Pairing],
    place: str,
    made: Explanation,
) -> list[Job]:
    """Two jobs for every copy, the copy's maps and ours scored there, and two more where classes differ."""
    at_hand = replace(made, cost=Cost())  # paid for already

    def job(pair: Pairing, what: str, explained: Task, scored_on: Task, **more: Any) -> Job:
        return Job(
            label, explainer, metrics, explained, scored_on, f"{place}, copy {pair.copy}: {what}", **more
        )

    jobs = []
    for pair in pairs:
        ours = at_hand.take(pair.rows.to(made.ids.device))
        jobs += [
            job(pair, "theirs, there and here", pair.theirs, pair.theirs, elsewhere=pair.mine),
            job(pair, "ours, there", pair.mine, pair.theirs, made=ours),
        ]
        if pair.split_mine is not None and pair.theirs_for_my_class is not None:
            jobs.append(job(pair, "theirs for our class, here", pair.theirs_for_my_class, pair.split_mine))
        if pair.split_theirs is not None and pair.mine_for_their_class is not None:
            jobs.append(
                job(pair, "ours for their class, there", pair.mine_for_their_class, pair.split_theirs)
            )
    return jobs


def size_jobs(metrics: Mapping[str, Metric], pairs: Sequence[Pairing], place: str) -> list[Job]:
    """One job for every copy: the size of the input scored there, the same for all methods."""
    size = InputMagnitude()
    return [
        Job(size.name, size, metrics, pair.theirs, pair.theirs, f"{place}, copy {pair.copy}: size")
        for pair in pairs
    ]


def randomisation_units(
    own: SampleScores,
    pairs: Sequence[Pairing],
    done: Sequence[Done],
    sizes_there: Sequence[Done],
    metrics: Sequence[str],
    grid: Grid,
) -> tuple[Tensor, ...]:
    """The units of the five tests in the order of samples: two rivals here, three there."""
    order = torch.cat([pair.rows for pair in pairs]).argsort().cpu()
    found: list[list[SampleScores]] = [[] for _ in range(6)]
    left = iter(done)
    for pair, size in zip(pairs, sizes_there, strict=True):
        count, both, made = [len(pair.rows)], next(left), next(left)
        theirs, here = (
            sample_scores([both], count, metrics),
            sample_scores([both], count, list(map(elsewhere, metrics))),
        )
        there = sample_scores([made], count, metrics)
        other, ours = here, there
        if len(pair.split):
            rows = pair.split.cpu()
            other = here.replaced(rows, sample_scores([next(left)], [len(rows)], metrics))
            ours = there.replaced(rows, sample_scores([next(left)], [len(rows)], metrics))
        for kept, one in zip(
            found, (other, here, theirs, ours, there, sample_scores([size], count, metrics)), strict=True
        ):
            kept.append(one)
    other, here, theirs, ours, there, sizes = (joined(some).take(order) for some in found)
    tests = [(own, other), (own, here), (theirs, ours), (theirs, there), (theirs, sizes)]
    return tuple(units(first, [rival], grid) for first, rival in tests)


def sample_scores(done: Sequence[Done], sizes: Sequence[int], labels: Iterable[str]) -> SampleScores:
    """Utilities (M, N) and missing maps (N,) of jobs that follow each other; a score that failed is NaN."""
    utility, missing = [], []
    for found, size in zip(done, sizes, strict=True):
        nothing = torch.full((size,), torch.nan, dtype=torch.float64)
        rows = [found.scores[label].utility.cpu() if label in found.scores else nothing for label in labels]
        utility.append(torch.stack(rows))
        gone = torch.ones(size, dtype=torch.bool)
        missing.append(gone if found.explanation is None else found.explanation.missing.cpu())
    return SampleScores(torch.cat(utility, 1), torch.cat(missing))
