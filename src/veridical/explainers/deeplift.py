"""DeepLIFT: the difference to a baseline, passed back through the differences of every activation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
from veridical.predictor import call
from veridical.rng import Key
from veridical.task import Task


@register
@dataclass(frozen=True)
class DeepLift(Explainer):
    """Contributions to y_c(x) - y_c(x0) by the rescale rule; they sum to it.

    An activation multiplies what comes from above by (f(z) - f(z0)) / (z - z0), its slope between baseline
    and input, and by its gradient where z and z0 agree. Max-pooling gives its change to the winners of both
    sides. Every activation and pooling must be a layer that runs once. Rows: each x forward and backward, and
    x0 forward, once a call, or once a sample where samples have side inputs of their own.
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

    def prepared(self, task: Task) -> Task:
        # a task of this call alone, whose chunks share what the baseline did in every layer
        own = super().prepared(task)._derive()
        own.calibrated(SHARED, dict)
        return own

    def attribute(self, task: Task, key: Key) -> Tensor:
        start = baseline_row(task, self.baseline)
        return (task.inputs - start) * multipliers(task, start)


SHARED = "the baseline in every layer"


@dataclass(frozen=True)
class _Run:
    """What a layer was given and answered, rows first, and where a pooling's windows had their largest."""

    z: Tensor
    y: Tensor
    winners: Tensor
    pooled: int
    """How many of the last axes a pooling goes over."""

    @classmethod
    def of(cls, layer: nn.Module, z: Tensor, output: Tensor, rows: int) -> _Run:
        if len(z) % rows:
            raise NotApplicableError(
                f"explainer 'deeplift' needs layers whose first axis counts rows; a {type(layer).__name__} "
                f"got shape {tuple(z.shape)} for {rows} rows"
            )
        y = output.detach()
        winners = _winners(layer, z, output) if isinstance(layer, POOLS) else y
        if len(z) == rows:
            return cls(z, y, winners, z.dim() - 2)
        # a model may lay several things of one row along the first axis
        apart = (rows, len(z) // rows)
        return cls(z.unflatten(0, apart), y.unflatten(0, apart), winners.unflatten(0, apart), z.dim() - 2)


def multipliers(task: Task, start: Tensor) -> Tensor:
    """The share of each element's difference to `start` (1, ...) that arrives at the explained output."""
    targets = task.targets  # before the hooks are set: they may need the model without them
    shared: dict[str, dict[nn.Module, _Run]] = {} if task.side else task.calibrated(SHARED, dict)
    if SHARED not in shared:
        shared[SHARED] = _baseline(task, start)
    known = shared[SHARED]

    def passed_back(layer: nn.Module, z: Tensor, inputs: Any, output: Tensor) -> Tensor | None:
        own, base = _Run.of(layer, z, output, len(task)), known[layer]
        if isinstance(layer, POOLS):
            pooled: Tensor = _Pool.apply(inputs[0], output.detach(), own, base)  # type: ignore[no-untyped-call]
            return pooled
        back: Callable[[Tensor, Tensor], Tensor]
        if isinstance(layer, nn.ReLU):
            back = partial(_through_rectifier, own.z, base.z)
        else:
            # taken now: the next layer may work in place and overwrite the answers
            back = partial(_through_activation, own.z, base.z, own.y - base.y)
        if output.grad_fn is not None:
            output.grad_fn.register_hook(lambda plain, above: (back(plain[0], above[0]),))
        return None

    with task.session(grad=True) as model, _watched(task, passed_back):
        x = task.inputs.detach().clone().requires_grad_(True)
        total = selected(call(model, x, task.side), targets).sum()
        if not total.requires_grad:
            raise InputError("the model's outputs do not depend on its inputs through torch operations")
        (slope,) = torch.autograd.grad(total, x)
    return slope.detach()


def _baseline(task: Task, start: Tensor) -> dict[nn.Module, _Run]:
    """Every layer at the baseline: one row, or one for each sample that has side inputs of its own."""
    rows = len(task) if task.side else 1
    runs: dict[nn.Module, _Run] = {}

    def keep(layer: nn.Module, z: Tensor, _inputs: Any, output: Tensor) -> None:
        # a copy: the next layer may work in place
        runs[layer] = _Run.of(layer, z, output.clone(), rows)

    with task.session() as model, _watched(task, keep):
        call(model, start.expand(rows, *start.shape[1:]), task.side)
    return runs


@contextmanager
def _watched(task: Task, look: Callable[[nn.Module, Tensor, Any, Tensor], Tensor | None]) -> Iterator[None]:
    """Call `look` with each activation and pooling that runs, and what it was given before it ran."""
    given: dict[nn.Module, Tensor] = {}

    def before(layer: nn.Module, inputs: Any) -> None:
        # an in-place layer overwrites its input
        z = inputs[0].detach()
        given[layer] = z.clone() if getattr(layer, "inplace", False) else z

    def after(layer: nn.Module, inputs: Any, output: Tensor) -> Tensor | None:
        return look(layer, given.pop(layer), inputs, output)

    with hooked(task.predictor.model, (*ELEMENTWISE, *POOLS), after, before):
        yield


def _through_rectifier(z: Tensor, z0: Tensor, plain: Tensor, above: Tensor) -> Tensor:
    """What a ReLU passes back: above times its slope, (z+ + z0+) / (|z| + |z0|), 1 or 0 where z is z0."""
    # the smallest number keeps 0 / 0 at 0 where both are 0, and changes nothing else
    size = z.abs().add_(z0.abs().add_(torch.finfo(z.dtype).tiny))
    # the plain gradient is not needed, its memory is
    slope = torch.clamp(z, min=0, out=plain.view_as(z)).add_(z0.clamp(min=0)).div_(size)
    return slope.view_as(above).mul_(above)


def _through_activation(z: Tensor, z0: Tensor, rise: Tensor, plain: Tensor, above: Tensor) -> Tensor:
    """What an activation passes back: its slope between baseline and input in the gradient's place."""
    return _over(rise.view_as(above) * above, (z - z0).view_as(above), plain)


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
    def forward(ctx: Any, z: Tensor, output: Tensor, own: _Run, base: _Run) -> Tensor:
        ctx.own, ctx.base, ctx.shape = own, base, z.shape
        return output.clone()  # the next layer may work in place

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        own, base = ctx.own, ctx.base
        at, at0, y, y0, z, z0 = (
            part.flatten(-own.pooled) for part in (own.winners, base.winners, own.y, base.y, own.z, base.z)
        )
        above, at0 = grads[0].reshape(y.shape), at0.expand_as(at)
        rise = y - y0
        # only winners get anything: what the input's adds above the baseline, at its own place (all of it
        # where nothing changes, as in a gradient), and what is lost where the baseline was higher, at the
        # baseline's
        more = rise.clamp(min=0).div_(z0.expand_as(z).gather(-1, at).neg_().add_(y)).nan_to_num_(1.0)
        less = rise.clamp_(max=0).div_(z.gather(-1, at0).sub_(y0).sub_(torch.finfo(y.dtype).tiny))
        out = z.new_zeros(z.shape)
        out.scatter_add_(-1, at, more.mul_(above)).scatter_add_(-1, at0, less.mul_(above))
        return out.reshape(ctx.shape), None, None, None
