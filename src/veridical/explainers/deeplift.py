"""DeepLIFT: the difference to a baseline, passed back through the differences of every activation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from veridical.errors import InputError, NotApplicableError
from veridical.explainers.base import Explainer, register, selected
from veridical.explainers.gradients import baseline_row, check_baseline, no_baseline
from veridical.explainers.hooks import ELEMENTWISE, POOLS, hooked, why_not_rescale
from veridical.explainers.lrp_rules import route
from veridical.model.predictor import call
from veridical.random.hash_kernels import at_once
from veridical.random.keyed import Key
from veridical.values.task import Task


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
        own = super().prepared(task).changed()
        own.calibrated(SHARED, dict)
        return own

    def attribute(self, task: Task, key: Key) -> Tensor:
        start = baseline_row(task, self.baseline)
        return (task.inputs - start).mul_(multipliers(task, start))


SHARED = "the baseline in every layer"
Look = Callable[[nn.Module, Tensor, Any, Tensor], Tensor | None]
Back = Callable[..., tuple[Tensor]]
"""What a layer passes back, given what comes from above and, for some, its plain gradient."""


@dataclass(frozen=True)
class _Run:
    """What a layer was given and answered, rows first, and where a pooling's windows had their largest."""

    z: Tensor
    y: Tensor
    winners: Tensor
    whole: torch.Size
    """The shape of what it was given, as it came."""

    @property
    def pooled(self) -> int:
        """How many of the last axes a pooling goes over."""
        return len(self.whole) - 2

    @classmethod
    def of(cls, layer: nn.Module, z: Tensor, output: Tensor, rows: int) -> _Run:
        if z.shape[0] % rows:
            raise NotApplicableError(
                f"explainer 'deeplift' needs layers whose first axis counts rows; a {type(layer).__name__} "
                f"got shape {tuple(z.shape)} for {rows} rows"
            )
        y = output.detach()
        winners = _winners(layer, z, output) if isinstance(layer, POOLS) else y
        if z.shape[0] == rows:
            return cls(z, y, winners, z.shape)
        # a model may lay several things of one row along the first axis
        apart = (rows, z.shape[0] // rows)
        return cls(z.unflatten(0, apart), y.unflatten(0, apart), winners.unflatten(0, apart), z.shape)


def multipliers(task: Task, start: Tensor) -> Tensor:
    """The share of each element's difference to `start` (1, ...) that arrives at the explained output."""
    targets = task.targets  # before the hooks are set: they may need the model without them
    shared: dict[str, dict[nn.Module, _Run]] = {} if task.side else task.calibrated(SHARED, dict)
    # the baseline is one row, or one for each sample that has side inputs of its own
    known, count, rows = shared.get(SHARED, {}), len(task), len(task) if task.side else 1

    def keep(layer: nn.Module, z: Tensor, _inputs: Any, output: Tensor) -> None:
        if isinstance(layer, nn.ReLU):
            z = z - torch.finfo(z.dtype).tiny  # as `_through_rectifier` needs it
        else:
            output = output.clone()  # the next layer may work in place; behind a ReLU no gradient allows it
        known[layer] = _Run.of(layer, z, output, rows)

    def passed_back(layer: nn.Module, z: Tensor, inputs: Any, output: Tensor) -> Tensor | None:
        # what is needed later is taken now: it is at hand, and the next layer may work in place
        own, base = _Run.of(layer, z, output, count), known[layer]
        if isinstance(layer, POOLS):
            return route(output.clone(), _through_pool(own, base), inputs[0])
        if not isinstance(layer, nn.ReLU):
            back = _through_activation(own, base)
        elif output is inputs[0]:
            back = _through_rectifier(own, base)
        else:
            return route(output, _through_rectifier(own, base), inputs[0])
        if output.grad_fn is not None:
            output.grad_fn.register_hook(lambda plain, above: back(above[0], plain[0]))
        return None

    with _watched(task.predictor.model) as watch:
        if SHARED not in shared:
            with task.session() as model:
                watch(keep)
                call(model, start.expand(rows, *start.shape[1:]), task.side)
            shared[SHARED] = known
        with task.session(grad=True) as model:
            watch(passed_back)
            x = task.inputs.detach().clone().requires_grad_(True)
            total = selected(call(model, x, task.side), targets).sum()
            if not total.requires_grad:
                raise InputError("the model's outputs do not depend on its inputs through torch operations")
            (slope,) = torch.autograd.grad(total, x)
    return slope.detach()


@contextmanager
def _watched(model: nn.Module) -> Iterator[Callable[[Look], None]]:
    """Call a look, of which others may take the place, with each activation and pooling that runs.

    It is given the layer, what the layer was given before it ran, its inputs as they are now, and its output.
    """
    given: dict[nn.Module, Tensor] = {}
    looks: list[Look] = []

    def before(layer: nn.Module, inputs: Any) -> None:
        given[layer] = inputs[0].detach().clone()

    def after(layer: nn.Module, inputs: Any, output: Tensor) -> Tensor | None:
        z = given.pop(layer) if layer in given else inputs[0].detach()
        return looks[-1](layer, z, inputs, output)

    with hooked(model, (*ELEMENTWISE, *POOLS), after, before, _works_in_place):
        yield looks.append


def _works_in_place(layer: nn.Module) -> bool:
    """Whether a layer overwrites its input."""
    return bool(getattr(layer, "inplace", False))


STEEP = """
template <typename T> T steep(T z, T z0, T y, T y0) { return 2 - (z + z0) / (y + y0); }
"""


def steep_steps(z: Tensor, z0: Tensor, y: Tensor, y0: Tensor) -> Tensor:
    """One over the slope of a ReLU between z0 and z, given its answers."""
    steep = z + z0
    return torch.addcdiv(
        torch.full((1,), 2.0, dtype=z.dtype, device=z.device), steep, y + y0, value=-1, out=steep
    )


def _through_rectifier(own: _Run, base: _Run) -> Back:
    """What a ReLU passes back: above times its slope, (z+ + z0+) / (|z| + |z0|), 1 or 0 where z is z0.

    As |z| = 2 z+ - z that is above / (2 - (z + z0) / (z+ + z0+)). Of two zeros the baseline's is taken for
    the smallest number below 0, which leads to the slope 0 and changes nothing else.
    """
    steep = at_once(STEEP, steep_steps, own.z, base.z, own.y, base.y)

    def back(above: Tensor, _plain: Tensor | None = None) -> tuple[Tensor]:
        passed = steep.view_as(above)  # asked for once: what comes from above may take its place
        return (torch.div(above, passed, out=passed),)

    return back


def _through_activation(own: _Run, base: _Run) -> Back:
    """What an activation passes back: its slope between baseline and input in the gradient's place."""
    rise, away = own.y - base.y, own.z - base.z

    def back(above: Tensor, plain: Tensor) -> tuple[Tensor]:
        return (_over(rise.view_as(above) * above, away.view_as(above), plain),)

    return back


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


def _through_pool(own: _Run, base: _Run) -> Back:
    """What max-pooling passes back: its change, to the winner of the side whose maximum is larger.

    Of a rise the input's winner gets the share that it rose by, of a fall the baseline's that it fell by. A
    winner that stays where it was gets all, as in a gradient.
    """
    at, at0, y, y0, z, z0 = (
        part.flatten(-own.pooled) for part in (own.winners, base.winners, own.y, base.y, own.z, base.z)
    )
    share = y - y0
    place = torch.where(share < 0, at0, at)
    share.div_(z.gather(-1, place).sub_(z0.expand_as(z).gather(-1, place))).nan_to_num_(1.0)
    whole, flat = own.whole, z.shape

    def back(above: Tensor, _plain: Tensor | None = None) -> tuple[Tensor]:
        passed = share.mul_(above.reshape(share.shape))
        return (passed.new_zeros(flat).scatter_add_(-1, place, passed).view(whole),)

    return back
