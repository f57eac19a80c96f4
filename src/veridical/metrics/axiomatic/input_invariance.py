"""Input invariance: does the map stay when input and model are shifted together?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from veridical.errors import InputError
from veridical.explainers.base import Explainer
from veridical.functional import euclidean, rms_normalise
from veridical.metrics.base import ExplainerMetric, Outcome, register
from veridical.metrics.blocks import in_blocks
from veridical.metrics.explaining import explaining
from veridical.metrics.input_noise import movable, why_no_noise
from veridical.rng import Key
from veridical.scores import Direction
from veridical.task import Task


class Compensated(nn.Module):
    """The child model behind a subtraction: it answers x + shift as the child answers x."""

    def __init__(self, module: nn.Module, shift: float) -> None:
        super().__init__()
        self.module = module
        self.shift = shift

    def forward(self, x: Tensor, *side: Any, **named: Any) -> Any:
        return self.module(x - self.shift, *side, **named)


def shifted(task: Task, shift: float, compensate: bool) -> Task:
    """The task at x + shift; with `compensate` also its model and reference rows, so that answers stay."""
    moved = task.with_inputs(task.inputs + shift)
    if not compensate:
        return moved
    train = None if task.train is None else task.train + shift
    twin = moved.with_module(Compensated(task.predictor.model, shift))
    # what fills take from the reference rows must come from the shifted ones
    twin = twin._derive(train=train, _train_facts={})
    twin.__dict__["reference"] = twin
    return twin


def gap_and_size(before: Tensor, after: Tensor, valid: Tensor | None) -> Tensor:
    """How far normalised maps lie apart in units of the first one's length, and that length (N, 2)."""
    before, after = rms_normalise(torch.stack([before, after]), where=valid)
    size = before.norm(dim=-1)
    return torch.stack([euclidean(before, after) / size.masked_fill(size == 0, torch.nan), size], -1)


@register
@dataclass(frozen=True)
class InputInvariance(ExplainerMetric):
    """‖e(f, x) - e(f', x + s)‖ / ‖e(f, x)‖ with f'(x + s) = f(x), maps divided by their root mean square.

    f' subtracts the shift s again, so both models are the same function of what they are shown; 0 means that
    the explanation does not see the shift. `compensate=False` shifts the input alone, as common programs do.
    """

    shift: float = 1.0
    compensate: bool = True
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

    def __post_init__(self) -> None:
        if self.shift == 0:
            raise InputError("a shift of 0 changes nothing; give another")

    def why_not(self, task: Task) -> str | None:
        return super().why_not(task) or why_no_noise(task)

    def evaluate(self, task: Task, explainer: Explainer, key: Key) -> Outcome:
        start = movable(task)
        # one key for both: the axiom is about the shift, not about an explainer's own noise
        with explaining(explainer, start) as explain:
            before, after = (
                explain(world, key) for world in (start, shifted(start, self.shift, self.compensate))
            )
        gap, size = in_blocks(gap_and_size, before, after, task.space.valid).unbind(-1)
        missing = before.isnan().any(-1) | after.isnan().any(-1)
        return Outcome(gap, {"the map is all zeros": size == 0, "no explanation": missing})
