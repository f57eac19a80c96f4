"""DeepLIFT: the difference to a baseline, passed back through the differences of every activation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from veridical.errors import InputError, NotApplicableError
from veridical.explainers.base import Explainer, register, selected
from veridical.explainers.gradients import baseline_row, check_baseline, no_baseline
from veridical.explainers.hooks import ELEMENTWISE, POOLS, hooked, why_not_rescale
from veridical.predictor import call, take_side
from veridical.rng import Key
from veridical.task import Task


@register
@dataclass(frozen=True)
class DeepLift(Explainer):
    """Contributions to y_c(x) - y_c(x0) by the rescale rule; they sum to it.

    An activation multiplies what comes from above by (f(z) - f(z0)) / (z - z0), its slope between baseline
    and input, and by its gradient where z and z0 agree. Max-pooling gives its change to the winners of both
    sides. Every activation and pooling must be a layer that runs once. Rows: x and x0.
    """

    baseline: float | str = 0.0
    name: ClassVar[str] = "deeplift"
    summary: ClassVar[str] = "difference to a baseline, passed back by the rescale rule"
    paper: ClassVar[str] = "Shrikumar et al. 2017, section 3.5"
    needs: ClassVar[frozenset[str]] = frozenset({"gradient"})

    def __post_init__(self) -> None:
        check_baseline(self.baseline)

    def rows_per_sample(self, task: Task) -> int:
        return 2

    def why_not(self, task: Task) -> str | None:
        return super().why_not(task) or no_baseline(task, self.baseline) or why_not_rescale(task)

    def attribute(self, task: Task, key: Key) -> Tensor:
        start = baseline_row(task, self.baseline).expand_as(task.inputs)
        return (task.inputs - start) * multipliers(task, start)


def multipliers(task: Task, start: Tensor) -> Tensor:
    """The share of each element's difference that arrives at the explained output."""
    count, targets = len(task), task.targets  # asked for now: they may need the model without its hooks
    twice = torch.arange(count, device=task.device).repeat(2)
    kept: dict[nn.Module, Tensor] = {}

    def before(layer: nn.Module, inputs: Any) -> None:
        # an in-place layer overwrites its input
        kept[layer] = inputs[0].detach().clone() if getattr(layer, "inplace", False) else inputs[0].detach()

    def after(layer: nn.Module, inputs: Any, output: Tensor) -> Tensor | None:
        z = kept.pop(layer)
        if len(z) % (2 * count):
            raise NotApplicableError(
                f"explainer 'deeplift' needs layers whose first axis counts rows; a {type(layer).__name__} "
                f"got shape {tuple(z.shape)} for {2 * count} rows"
            )
        if isinstance(layer, POOLS):
            pooled: Tensor = _Pool.apply(inputs[0], output.detach(), layer)  # type: ignore[no-untyped-call]
            return pooled
        answer = output.detach().clone()
        if output.grad_fn is not None:
            output.grad_fn.register_hook(lambda plain, above: (_slope(z, answer, plain[0], above[0]),))
        return None

    with (
        task.session(grad=True) as model,
        hooked(task.predictor.model, (*ELEMENTWISE, *POOLS), after, before),
    ):
        x = task.inputs.detach().clone().requires_grad_(True)
        outputs = call(model, torch.cat([x, start]), take_side(task.side, twice))
        total = selected(outputs[:count], targets).sum()
        if not total.requires_grad:
            raise InputError("the model's outputs do not depend on its inputs through torch operations")
        (slope,) = torch.autograd.grad(total, x)
    return slope.detach()


def _slope(z: Tensor, answer: Tensor, plain: Tensor, above: Tensor) -> Tensor:
    """Put the slope between baseline and input in the place of the gradient, for the rows of the input."""
    z, z0 = z.chunk(2)
    y, y0 = answer.chunk(2)
    above, below = above.chunk(2)[0], plain.chunk(2)[0]
    away = z - z0
    near = away.abs() < _close(z)
    passed = torch.where(near, below, above * (y - y0) / torch.where(near, 1.0, away))
    return torch.cat([passed, torch.zeros_like(passed)])


def _close(z: Tensor) -> float:
    """Below this difference a slope would be mostly rounding."""
    return 1e-10 if z.dtype == torch.float64 else 1e-6


class _Pool(torch.autograd.Function):
    """Max-pooling's output, passing its change back to the winners at the input and at the baseline."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, output: Tensor, layer: nn.Module) -> Tensor:
        ctx.save_for_backward(z, output)
        ctx.layer = layer
        return output.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        z, output = ctx.saved_tensors
        layer = ctx.layer
        pool = {nn.MaxPool1d: F.max_pool1d, nn.MaxPool2d: F.max_pool2d, nn.MaxPool3d: F.max_pool3d}
        rank = next(i for i, kind in enumerate(pool, 1) if isinstance(layer, kind))
        _, winners = list(pool.values())[rank - 1](
            z, layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.ceil_mode, True
        )
        # what the input's winner adds above the baseline, and what is lost where the baseline was higher
        y, y0 = output.chunk(2)
        top = torch.maximum(y, y0)
        change = torch.cat([top - y0, y - top])
        above = torch.cat([grads[0].chunk(2)[0]] * 2)
        flat = z.new_zeros(z.shape).flatten(-rank)
        given = flat.scatter_add(-1, winners.flatten(-rank), (above * change).flatten(-rank)).view_as(z)
        plain = flat.scatter_add(-1, winners.flatten(-rank), above.flatten(-rank)).view_as(z)
        a, b = given.chunk(2)
        z, z0 = z.chunk(2)
        away = z - z0
        near = away.abs() < _close(z)
        passed = torch.where(near, plain.chunk(2)[0], (a + b) / torch.where(near, 1.0, away))
        return torch.cat([passed, torch.zeros_like(passed)]), None, None
