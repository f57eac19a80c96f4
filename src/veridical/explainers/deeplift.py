"""DeepLIFT: the difference to a baseline, passed back through the differences of every activation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
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
    sides. Every activation and pooling must be a layer that runs once. Rows: each
    x; x0 rides along once a chunk and, like padding, is not counted, or once a sample, counted, where samples
    have side inputs of their own.
    """

    baseline: float | str = 0.0
    name: ClassVar[str] = "deeplift"
    summary: ClassVar[str] = "difference to a baseline, passed back by the rescale rule"
    paper: ClassVar[str] = "Shrikumar et al. 2017, section 3.5"
    needs: ClassVar[frozenset[str]] = frozenset({"gradient"})

    def __post_init__(self) -> None:
        check_baseline(self.baseline)

    def rows_per_sample(self, task: Task) -> int:
        return 2 if task.side else 1

    def why_not(self, task: Task) -> str | None:
        return super().why_not(task) or no_baseline(task, self.baseline) or why_not_rescale(task)

    def attribute(self, task: Task, key: Key) -> Tensor:
        start = baseline_row(task, self.baseline)
        return (task.inputs - start) * multipliers(task, start)


def multipliers(task: Task, start: Tensor) -> Tensor:
    """The share of each element's difference to `start` (1, ...) that arrives at the explained output.

    One baseline row behind the samples serves them all, unless they have side inputs of their own.
    """
    count, targets = len(task), task.targets  # asked for now: they may need the model without its hooks
    order = torch.cat([torch.arange(n, device=task.device) for n in (count, count if task.side else 1)])
    kept: dict[nn.Module, Tensor] = {}

    def before(layer: nn.Module, inputs: Any) -> None:
        # an in-place layer overwrites its input
        kept[layer] = inputs[0].detach().clone() if getattr(layer, "inplace", False) else inputs[0].detach()

    def after(layer: nn.Module, inputs: Any, output: Tensor) -> Tensor | None:
        z = kept.pop(layer)
        if len(z) % len(order):
            raise NotApplicableError(
                f"explainer 'deeplift' needs layers whose first axis counts rows; a {type(layer).__name__} "
                f"got shape {tuple(z.shape)} for {len(order)} rows"
            )
        rows = _Rows(count, len(order))
        if isinstance(layer, POOLS):
            winners = _winners(layer, z, output)
            pooled: Tensor = _Pool.apply(inputs[0], output.detach(), winners, rows)  # type: ignore[no-untyped-call]
            return pooled
        back: Callable[[Tensor, Tensor], Tensor]
        if isinstance(layer, nn.ReLU):
            back = partial(_through_rectifier, rows, z)
        else:
            # taken now: the next layer may work in place and overwrite the answers
            back = partial(_through_activation, rows, z, torch.sub(*rows.apart(output.detach())))
        if output.grad_fn is not None:
            output.grad_fn.register_hook(lambda plain, above: (back(plain[0], above[0]),))
        return None

    with (
        task.session(grad=True) as model,
        hooked(task.predictor.model, (*ELEMENTWISE, *POOLS), after, before),
    ):
        x = task.inputs.detach().clone().requires_grad_(True)
        rows = torch.cat([x, start.expand(len(order) - count, *x.shape[1:])])
        outputs = call(model, rows, take_side(task.side, order))
        total = selected(outputs[:count], targets).sum()
        if not total.requires_grad:
            raise InputError("the model's outputs do not depend on its inputs through torch operations")
        (slope,) = torch.autograd.grad(total, x)
    if not task.side:
        task.predictor.meter.forward -= 1
        task.predictor.meter.backward -= 1
    return slope.detach()


@dataclass(frozen=True)
class _Rows:
    """Which rows of a chunk are samples: the first `count`; the baselines come behind them."""

    count: int
    rows: int

    def apart(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Values of the samples (count, ...) and of the baselines (count or 1, ...), which stand for all."""
        each = values.unflatten(0, (self.rows, -1))
        return each[: self.count], each[self.count :]


def _through_rectifier(rows: _Rows, z: Tensor, plain: Tensor, above: Tensor) -> Tensor:
    """What a ReLU passes back: above times max(z, z0) / |z - z0|, held between 0 and 1."""
    own, base = rows.apart(z)
    # the smallest number keeps 0 / 0 at 0 where both are 0, and changes nothing else
    away = torch.sub(own, base).abs_().add_(torch.finfo(z.dtype).tiny)
    slope = torch.maximum(own, base).div_(away).clamp_(0, 1)
    out = torch.empty_like(plain)
    passed, rest = rows.apart(out)
    torch.mul(slope, rows.apart(above)[0], out=passed)
    rest.zero_()
    return out


def _through_activation(rows: _Rows, z: Tensor, rise: Tensor, plain: Tensor, above: Tensor) -> Tensor:
    """What an activation passes back: its slope between baseline and input in the gradient's place."""
    out = torch.zeros_like(plain)
    away = torch.sub(*rows.apart(z))
    rows.apart(out)[0].copy_(_over(rows.apart(above)[0] * rise, away, rows.apart(plain)[0]))
    return out


def _over(given: Tensor, away: Tensor, plain: Tensor) -> Tensor:
    """`given` over the change of the inputs, or the plain gradient where they hardly change."""
    # below this difference a slope would be mostly rounding
    away = F.hardshrink(away, 1e-10 if away.dtype == torch.float64 else 1e-6)
    # 1 where they agree, else 0: arithmetic, which a CPU vectorises as it does not a choice
    near = away.sign().square_().neg_().add_(1)
    return given.div_(away.add_(near)).lerp_(plain, near)


def _winners(layer: Any, z: Tensor, output: Tensor) -> Tensor:
    """The place of each window's largest value, counted along the pooled axes."""
    found: Tensor | None = getattr(output.grad_fn, "_saved_result1", None)
    if isinstance(layer, nn.MaxPool2d) and found is not None:
        return found  # the layer has just looked for them
    pool = F.max_pool1d if isinstance(layer, nn.MaxPool1d) else F.max_pool3d
    pool = F.max_pool2d if isinstance(layer, nn.MaxPool2d) else pool
    shape = (layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.ceil_mode)
    return pool(z, *shape, return_indices=True)[1]


class _Pool(torch.autograd.Function):
    """Max-pooling's output, passing its change back to the winners at the input and at the baseline."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, output: Tensor, winners: Tensor, rows: _Rows) -> Tensor:
        ctx.save_for_backward(z, output)
        ctx.winners, ctx.rows = winners, rows
        return output.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        rows: _Rows = ctx.rows
        z, output = ctx.saved_tensors
        places = z.dim() - 2  # rows, channels, and the pooled axes
        own, base = (part.flatten(-places) for part in rows.apart(ctx.winners))
        base = base.expand_as(own)
        y, y0 = (part.flatten(-places) for part in rows.apart(output))
        above = rows.apart(grads[0])[0].flatten(-places)
        mine, other = (part.flatten(-places) for part in rows.apart(z))
        rise = y - y0
        # only winners get anything: what the input's adds above the baseline, at its own place, and what is
        # lost where the baseline was higher, at the baseline's
        at_own = _over(above * rise.clamp(min=0), y - other.expand_as(mine).gather(-1, own), above)
        at_base = _over(above * rise.clamp(max=0), mine.gather(-1, base) - y0, torch.zeros_like(above))
        out = z.new_zeros(z.shape)  # laid out so that flattening it is a view
        given = rows.apart(out)[0].flatten(-places)
        given.scatter_add_(-1, own, at_own).scatter_add_(-1, base, at_base)
        return out, None, None, None
