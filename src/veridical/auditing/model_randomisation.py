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
from veridical.explainers.diagnostics import difference_from_empty, output_of_target
from veridical.functional import pearson
from veridical.functional.responses import grid_step
from veridical.metrics import Metric
from veridical.models.adapters import adapt
from veridical.models.cost import Cost
from veridical.models.predictor import Output, call, take_side
from veridical.models.randomised_layers import estimate_batch_norm, noisy, reinitialised
from veridical.values.explanation import Explanation
from veridical.values.task import Task

COPIES = 4
MAPS, SCORES = 1, 3
"""Maps of each method and sample in the test, and their scores."""
STEPS = 100
"""Grid steps that the response of a copy moves, at least, when everything is masked."""
SHARE = 0.1
"""The share of samples in which it may move less."""
ALIKE = 0.9
"""The correlation of responses over samples, of either sign, from which on a copy is no other model."""
TRIES = 3 * COPIES
"""Copies that are drawn at most to find those that are other models."""
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


def has_weights(task: Task) -> bool:
    """Whether the model has weights that torch can see, so that others of its shape can be made."""
    source = task.predictor.source
    return not source.shared and any(p.is_floating_point() for p in source.module.parameters())


def other_models(task: Task, seed: int) -> tuple[Copies | None, str]:
    """Four copies with fresh weights, or noisy ones where masks do not move those; and why."""
    if not has_weights(task):
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
        made, why = list[nn.Module](), ""
        try:
            for k in range(TRIES):
                module = _copy(task, make, Key(seed) / "audit" / "swap" / kind / k)
                reason = _degenerate(task, module)
                made, why = (made, reason) if reason else ([*made, module], why)
                if len(made) == COPIES or (reason and k + 1 == COPIES and not made):
                    break
        except (VeridicalError, RuntimeError) as error:
            made, why = [], f"they cannot be evaluated: {error}"
        if len(made) == COPIES:
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
    made = []
    for number, other in enumerate(others):
        module = adapted(task, other)
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


def adapted(task: Task, model: Any) -> nn.Module:
    """Another model of any library as the module of this task."""
    own, side = task.predictor.source.module, take_side(task.side, slice(0, 1))
    output, rows = task.predictor.output, task.inputs if task.train is None else task.train
    codec = getattr(own, "codec", None)
    return adapt(model, lambda f, row: output(call(f, row, side)), task.inputs[:1], codec, rows)[0]


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
        both = [output_of_target(of).double() for of in (task, there.with_targets(task.targets))]
        r = float(pearson(*both))
        if abs(r) >= ALIKE:  # the same features matter to a model of the opposite sign
            return f"the outputs of a copy go with those of the model (r = {r:.2f} over samples)"
    empty = still(there.uncounted(lambda: difference_from_empty(there, Key(0) / "swap")))
    if empty > SHARE:
        return f"masking everything leaves the output of a copy as it was in {empty:.0%} of the samples"
    return ""


def on(task: Task, module: nn.Module, factor: float = 1.0) -> Task:
    """The task with another model, for the class that one predicts."""
    output = Scaled(task.predictor.output, factor) if factor != 1.0 else None
    return task.with_module(module, output).changed(alone=True, targets="predicted")


class Pairing(NamedTuple):
    """Some samples under the audited model and under the copy they meet, each for the class it predicts."""

    rows: Tensor
    copy: int
    mine: Task
    theirs: Task


def pairings(batch: Task, start: int, copies: Copies) -> list[Pairing]:
    """The samples of a stage, the first of which is number `start`, divided among the copies."""
    out = []
    for k, (module, factor) in enumerate(zip(copies.modules, copies.factors, strict=True)):
        numbers = torch.arange(len(batch), device=batch.device)
        rows = numbers[(start + numbers) % len(copies.modules) == k]
        if len(rows):
            mine = batch[rows]
            theirs = on(mine, module, factor)
            out.append(Pairing(rows, k, mine, theirs.with_targets(theirs.predictions)))
    return out


def randomisation_jobs(
    label: str,
    explainer: Explainer,
    metrics: Mapping[str, Metric],
    pairs: Sequence[Pairing],
    place: str,
    made: Explanation,
) -> list[Job]:
    """Two jobs for every copy: its maps, scored there and here, and ours, scored there."""
    at_hand = replace(made, cost=Cost())  # paid for already
    jobs = []
    for pair in pairs:
        where, ours = f"{place}, copy {pair.copy}", at_hand.take(pair.rows.to(made.ids.device))
        here, there = pair.mine, pair.theirs
        jobs += [
            Job(label, explainer, metrics, there, there, f"{where}: theirs, there and here", elsewhere=here),
            Job(label, explainer, metrics, here, there, f"{where}: ours, there", made=ours),
        ]
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
    """The units of the three tests in the order of samples: one rival here, two there.

    Each model's map is that for the class it predicts. A map of the class alone wins here, where classes
    differ, and not there; one that is spoilt for classes a model does not predict ties in both.
    """
    order = torch.cat([pair.rows for pair in pairs]).argsort().cpu()
    found: list[list[SampleScores]] = [[], [], [], []]
    for pair, theirs, ours, size in zip(pairs, done[::2], done[1::2], sizes_there, strict=True):
        count = [len(pair.rows)]
        found[0].append(sample_scores([theirs], count, list(map(elsewhere, metrics))))
        for kept, one in zip(found[1:], (theirs, ours, size), strict=True):
            kept.append(sample_scores([one], count, metrics))
    here, theirs_there, ours_there, sizes = (joined(some).take(order) for some in found)
    tests = [(own, here), (theirs_there, ours_there), (theirs_there, sizes)]
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
