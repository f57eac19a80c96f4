"""Input invariance: does the map stay when input and model are shifted together?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from veridical.explainers.input_noise import movable, why_no_noise
from veridical.functional import euclidean, rms_normalise
from veridical.functional._rows import in_blocks
from veridical.metrics import LARGE, ExplainerMetric, Outcome, Within, register
from veridical.metrics.re_explaining import explaining
from veridical.metrics.types import Context, Direction, Explainer, Task


class Compensated(nn.Module):
    """The child model behind a subtraction: its output at x + shift is the child's at x."""

    def __init__(self, module: nn.Module, shift: float) -> None:
        super().__init__()
        self.module = module
        self.shift = shift

    def forward(self, x: Tensor, /, *side: Any, **named: Any) -> Any:
        return self.module(x - self.shift, *side, **named)


def shifted(task: Task, shift: float, compensate: bool) -> Task:
    """The task at x + shift; with `compensate` also its model and reference rows, so that outputs stay."""
    moved = task.with_inputs(task.inputs + shift)
    if not compensate:
        return moved
    train = None if task.train is None else task.train + shift
    # what fills take from the reference rows comes from the shifted ones, too
    return moved.changed(
        alone=True, predictor=moved.predictor.wrapped(partial(Compensated, shift=shift)), train=train
    )


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

    def inapplicable_reason(self, task: Task) -> str | None:
        return super().inapplicable_reason(task) or why_no_noise(task)

    def evaluate(self, task: Task, explainer: Explainer, context: Context) -> Outcome:
        start = movable(task)
        # one key for both: the axiom is about the shift, not about an explainer's own noise
        with explaining(explainer, context, start) as explain:
            pair = (start, shifted(start, self.shift, self.compensate))
            maps = torch.stack([explain(each, context.key) for each in pair], 1)
        apart = in_blocks(distance_and_size, maps, task.space.valid, width=maps[0].numel())
        distance, size = apart.unbind(-1)
        empty = size == 0
        flags = {"the map is all zeros": empty, "no explanation": distance.isnan()}
        return Outcome(distance / size.masked_fill(empty, torch.nan), flags)
