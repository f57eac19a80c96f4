"""Input invariance: does the map stay when input and model are shifted together?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from veridical.core.allowed import LARGE, Within
from veridical.explainers.gradients import Gradient, InputXGradient, Saliency
from veridical.functional import euclidean, rms_normalise
from veridical.metrics.base import ExplainerMetric, Outcome, register
from veridical.metrics.blocks import in_blocks
from veridical.metrics.input_noise import movable, why_no_noise
from veridical.metrics.re_explaining import at_once, explaining, stacked
from veridical.metrics.types import Direction, Explainer, Key, Task


class Compensated(nn.Module):
    """The child model behind a subtraction: it answers x + shift as the child answers x."""

    def __init__(self, module: nn.Module, shift: float) -> None:
        super().__init__()
        self.module = module
        self.shift = shift

    def forward(self, x: Tensor, /, *side: Any, **named: Any) -> Any:
        return self.module(x - self.shift, *side, **named)


class CompensatedRows(nn.Module):
    """The same where every row has a shift of its own, which comes as the first side input."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor, shift: Tensor, *side: Any) -> Any:
        return self.module(x - shift, *side)


def shifted(task: Task, shift: float, compensate: bool) -> Task:
    """The task at x + shift; with `compensate` also its model and reference rows, so that answers stay."""
    moved = task.with_inputs(task.inputs + shift)
    if not compensate:
        return moved
    train = None if task.train is None else task.train + shift
    # what fills take from the reference rows comes from the shifted ones, too
    return moved.changed(
        alone=True, predictor=moved.predictor.wrapped(partial(Compensated, shift=shift)), train=train
    )


# by their very types: they read the gradient at the input and nothing of fills, reference rows or layers
_READ_ONE_INPUT = (Gradient, Saliency, InputXGradient)


def _in_one_call(explainer: Explainer, task: Task) -> bool:
    """Whether a sample and its shifted twin can be explained as rows of one batch."""
    if type(explainer) not in _READ_ONE_INPUT or isinstance(task.side, dict):
        return False
    return at_once(explainer, task, 2) == 2


def _both(task: Task, shift: float, compensate: bool) -> Task:
    """All samples, and behind them all at x + shift; with `compensate` answered as they were without it."""
    inputs = torch.cat([task.inputs, task.inputs + shift])
    twins = stacked(task, 2, inputs)
    if not compensate:
        return twins
    shifts = inputs.new_zeros(len(inputs), *[1] * (inputs.dim() - 1))
    shifts[len(task) :] = shift
    return twins.changed(predictor=twins.predictor.wrapped(CompensatedRows), side=(shifts, *twins.side))


def distance_and_size(maps: Tensor, valid: Tensor | None) -> Tensor:
    """How far two normalised maps (N, 2, V) lie apart, and the length of the first one (N, 2)."""
    where = None if valid is None else valid[:, None]
    before, after = rms_normalise(maps, where=where).unbind(1)
    return torch.stack([euclidean(before, after), torch.linalg.vector_norm(before, dim=-1)], -1)


@register
@dataclass(frozen=True)
class InputInvariance(ExplainerMetric):
    """‖e(f, x) - e(f', x + s)‖ / ‖e(f, x)‖ with f'(x + s) = f(x), maps divided by their root mean square.

    f' subtracts the shift s again, so both models are the same function of what they are shown; 0 means that
    the explanation does not see the shift.
    """

    shift: Annotated[float, Within(-LARGE, LARGE, without=(0,))] = 1.0
    """What is added to every input element; not 0."""
    compensate: bool = True
    """Whether the model subtracts the shift again; if not, the input alone is shifted, as in
    common programs."""
    name: ClassVar[str] = "input_invariance"
    category: ClassVar[str] = "axiomatic"
    direction: ClassVar[Direction] = Direction.LOWER
    summary: ClassVar[str] = "Does the map stay when input and model are shifted together?"
    assumes: ClassVar[str] = "an explanation should not depend on where the zero of the inputs lies"
    misleads: ClassVar[str] = (
        "methods with a baseline at zero fail by their baseline, which should have been shifted too; maps "
        "that ignore the input pass"
    )
    paper: ClassVar[str] = "Kindermans et al. 2019"
    needs: ClassVar[frozenset[str]] = frozenset({"explainer"})

    def why_not(self, task: Task) -> str | None:
        return super().why_not(task) or why_no_noise(task)

    def evaluate(self, task: Task, explainer: Explainer, key: Key) -> Outcome:
        start = movable(task)
        about = self.shift, self.compensate
        # one key for both: the axiom is about the shift, not about an explainer's own noise
        with explaining(explainer, start) as explain:
            if _in_one_call(explainer, start):
                world = start.latest("beside their shifted twins", about, lambda: _both(start, *about))
                maps = explain(world, key).unflatten(0, (2, -1)).transpose(0, 1)
            else:
                maps = torch.stack([explain(world, key) for world in (start, shifted(start, *about))], 1)
        apart = in_blocks(distance_and_size, maps, task.space.valid, width=maps[0].numel())
        distance, size = apart.unbind(-1)
        empty = size == 0
        flags = {"the map is all zeros": empty, "no explanation": distance.isnan()}
        return Outcome(distance / size.masked_fill(empty, torch.nan), flags)
