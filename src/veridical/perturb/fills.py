"""Fills by name, those whose values differ between samples or draws, and how a caller's fill is read."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from veridical.core import key as keyed
from veridical.core.allowed import Count, Index, Positive
from veridical.core.key import Key
from veridical.core.settings import revivable
from veridical.errors import InputError, NotApplicableError, check_arity
from veridical.perturb.backgrounds import Constant as Constant
from veridical.perturb.backgrounds import Fill as Fill
from veridical.perturb.backgrounds import Mean as Mean
from veridical.perturb.backgrounds import Token as Token
from veridical.perturb.backgrounds import Zero as Zero

if TYPE_CHECKING:
    from veridical.values.space import Space
    from veridical.values.task import Task


@revivable
@dataclass(frozen=True)
class Marginal(Fill):
    """Values of reference rows, so that removed columns keep a value they really take.

    The answer to a mask is the mean over `rows` of them (interventional): all where there are no more, else
    so many drawn without replacement, the same for all samples, explainers and metrics of one seed.
    `Marginal(1)` lets one row stand in, another one for every sample and draw.
    """

    rows: Count = 100
    """How many reference rows the answer to a mask is averaged over, at most."""
    draw: Index = 0
    """Which draw of the rows: another number takes others under the same seed."""
    name: ClassVar[str] = "marginal"
    needs_train: ClassVar[bool] = True

    def repeats_on(self, task: Task) -> int:
        return self.rows if task.train is None else min(self.rows, len(task.train))

    def draw_of(self, key: Key) -> Key:
        return (key if self.rows == 1 else Key(key.seed)) / "reference rows" / self.draw

    def follows_seed(self, task: Task) -> bool:
        return task.train is None or len(task.train) > self.rows

    def prepare(self, train: Tensor | None, space: Space) -> Tensor | None:
        super().prepare(train, space)
        return train

    def background(self, state: Tensor | None, x: Tensor, ids: Tensor, key: Key) -> Tensor:
        assert state is not None
        own = self.draw_of(key)
        if self.rows == 1:
            return state[keyed.integers(own, ids, 0, 1, len(state))]
        if len(state) <= self.rows:
            return state[None]
        return state[_drawn_rows(own, len(state), self.rows).to(state.device)][None]


@lru_cache(maxsize=64)
def _drawn_rows(key: Key, among: int, count: int) -> Tensor:
    """So many different row numbers, in ascending order; the same on every device."""
    with torch.inference_mode(False):
        return keyed.permutation(key, torch.zeros(1, dtype=torch.int64), 0, among)[0, :count].sort().values


def extremes(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest and the largest value of each element over the rows, among those that are not missing."""
    if not rows.is_floating_point():
        return rows.amin(0), rows.amax(0)
    low, high = rows.nan_to_num(nan=torch.inf).amin(0), rows.nan_to_num(nan=-torch.inf).amax(0)
    never = low > high
    return low.masked_fill(never, torch.nan), high.masked_fill(never, torch.nan)


@revivable
@dataclass(frozen=True)
class UniformNoise(Fill):
    """Independent noise in every element, uniform over the range it has in the reference rows.

    Without reference rows the range is that of the sample itself.
    """

    name: ClassVar[str] = "uniform_noise"

    def prepare(self, train: Tensor | None, space: Space) -> Tensor | None:
        return None if train is None else torch.stack(extremes(train))

    def background(self, state: Tensor | None, x: Tensor, ids: Tensor, key: Key) -> Tensor:
        if state is None:
            flat = x.reshape(len(x), -1)
            shape = (-1, *[1] * (x.dim() - 1))
            low, high = flat.amin(-1).reshape(shape), flat.amax(-1).reshape(shape)
        else:
            low, high = state[0], state[1]
        dtype = x.dtype if x.is_floating_point() else torch.float64
        share = keyed.uniform(key / "noise", ids, 0, x[0].numel(), dtype).reshape(x.shape)
        low, high = low.to(dtype), high.to(dtype)
        return (low + share * (high - low))[:, None].to(x.dtype)


@revivable
@dataclass(frozen=True)
class Blur(Fill):
    """The input itself under a Gaussian blur of `sigma` pixels or time steps."""

    sigma: Positive = 3.0
    """Standard deviation of the Gaussian, in pixels or time steps."""
    name: ClassVar[str] = "blur"
    drawn: ClassVar[bool] = False

    def prepare(self, train: Tensor | None, space: Space) -> Tensor | None:
        # channels are never mixed, and a series may have its time on either axis
        if space.kind == "step":
            return torch.tensor([1 + space.labels.shape.index(space.n_features)])
        return None

    def background(self, state: Tensor | None, x: Tensor, ids: Tensor, key: Key) -> Tensor:
        if x.dim() not in (3, 4, 5) or not x.is_floating_point():
            raise NotApplicableError(
                f"Blur works on images and series of floats, not on {x.dtype} rows of {tuple(x.shape[1:])}"
            )
        blurred = x
        for axis in range(2, x.dim()) if state is None else state.tolist():
            blurred = self._along(blurred, axis)
        return blurred[:, None]

    def _along(self, x: Tensor, axis: int) -> Tensor:
        reach = min(int(4 * self.sigma + 0.5), x.shape[axis] - 1)
        if reach < 1:
            return x
        offsets = torch.arange(-reach, reach + 1, device=x.device, dtype=x.dtype)
        kernel = torch.exp(-0.5 * (offsets / self.sigma) ** 2)
        kernel = (kernel / kernel.sum()).reshape(1, 1, -1)
        moved = x.movedim(axis, -1)
        rows = F.pad(moved.reshape(-1, 1, moved.shape[-1]), (reach, reach), mode="reflect")
        return F.conv1d(rows, kernel).reshape(moved.shape).movedim(-1, axis)


def _keep(x: Tensor, removed: Tensor) -> Tensor:
    return x


@dataclass(frozen=True)
class Custom(Fill):
    """The user's own rule `function(x, removed) -> x filled`, over rows and their element masks."""

    function: Callable[[Tensor, Tensor], Tensor] = _keep
    """From rows and their element masks (True is removed) to filled rows."""
    name: ClassVar[str] = "custom"
    looks_at_mask: ClassVar[bool] = True

    def impute(self, x: Tensor, removed: Tensor, ids: Tensor, key: Key) -> Tensor:
        # a copy: the function may write into what it gets, and these rows may be the caller's own
        filled = self.function(x.clone(), removed.expand_as(x))
        if not isinstance(filled, Tensor) or filled.shape != x.shape:
            got = tuple(filled.shape) if isinstance(filled, Tensor) else type(filled).__name__
            raise InputError(f"the fill function returned {got}, expected a tensor of shape {tuple(x.shape)}")
        return filled


def as_fill(fill: Fill | str | float | Callable[[Tensor, Tensor], Tensor]) -> Fill:
    """Accept a fill, its name, a number, or the user's function."""
    from veridical.errors import unknown_name
    from veridical.perturb.mask_aware_fills import NeighbourMean, NoisyLinear

    if isinstance(fill, Fill):
        return fill
    if isinstance(fill, type) and issubclass(fill, Fill):
        return fill()
    if isinstance(fill, numbers.Real):
        return Constant(float(fill))
    if isinstance(fill, str):
        kinds = (Zero, Constant, Token, Mean, Marginal, UniformNoise, Blur, NoisyLinear, NeighbourMean)
        known: dict[str, type[Fill]] = {kind.name: kind for kind in kinds}
        if fill not in known:
            raise unknown_name("fill", fill, known)
        return known[fill]()
    if isinstance(fill, type) or not callable(fill):
        raise InputError(f"a fill is a Fill, a name, a number or a function; got {type(fill).__name__}")
    check_arity(fill, 2, {}, "a fill is a function (inputs, removed) -> inputs")
    return Custom(fill)


def default_fill(space: Space, has_train: bool) -> Fill:
    """Zero for images and series, reference rows for columns; a token has no natural default."""
    if space.kind == "token" and len(space.input_shape) == 1:
        return Token(0)
    if space.kind in ("column", "column_group") and has_train:
        return Marginal()
    return Zero()
