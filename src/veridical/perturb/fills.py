"""Fills: what takes the place of a removed feature, by name, and how a caller's fill is read.

Most fills are a *background*: an input, independent of the mask, whose elements show through wherever a
feature is removed. Those that depend on the mask (`impute`) work on the masked rows themselves.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from veridical.core import key as keyed
from veridical.core.allowed import Count, Index, NotNegative, Positive, Value
from veridical.core.facts import train_fact
from veridical.core.key import Key
from veridical.core.settings import Settings, revivable
from veridical.core.space import Space
from veridical.errors import InputError, NotApplicableError, check_arity, unknown_name
from veridical.perturb.masked_task import MaskedTask
from veridical.perturb.road import solve_holes


@dataclass(frozen=True)
class Fill(Settings):
    """Base of the fills: `prepare` per task, then `background` per sample or `impute` per mask, each once."""

    name: ClassVar[str] = ""
    needs_train: ClassVar[bool] = False
    looks_at_mask: ClassVar[bool] = False
    drawn: ClassVar[bool] = True
    """Whether its values are drawn by a key; others follow from the task alone."""

    @staticmethod
    def from_plain(value: str | float) -> Fill:
        """The fill of this name, or a constant: what stands for a fill in settings, files and commands."""
        return as_fill(value)

    def repeats_on(self, task: MaskedTask) -> int:
        """How many backgrounds are tried for every mask, over which the model's outputs are averaged."""
        return 1

    def draw_of(self, key: Key) -> Key:
        """What drawn values follow besides the task."""
        return key

    def follows_seed(self, task: MaskedTask) -> bool:
        """Whether another seed gives other values on this task."""
        return self.drawn

    def prepare(self, train: Tensor | None, space: Space) -> Tensor | None:
        """Estimate from the reference rows whatever the fill needs; computed once per task."""
        if self.needs_train and train is None:
            raise NotApplicableError(
                f"fill '{self.name}' takes its values from reference rows; give the task train=..., "
                "or choose fill=Zero()"
            )
        return None

    def weights(self, state: Tensor, train: Tensor) -> Tensor | None:
        """The weight of each background in the mean output under a mask; None where all count alike."""
        return None

    def background(self, state: Tensor | None, x: Tensor, ids: Tensor, key: Key) -> Tensor:
        """What shows through removed features: (B or 1, repeats, *input shape) for rows x (B, *shape)."""
        raise NotApplicableError(f"fill '{self.name}' depends on the mask and has no background")

    def impute(self, x: Tensor, removed: Tensor, ids: Tensor, key: Key) -> Tensor:
        """Fill rows x (R, *shape) where `removed` (broadcast over x); only if `looks_at_mask`."""
        raise NotApplicableError(f"fill '{self.name}' has a background and does not depend on the mask")

    def impute_masks(self, x: Tensor, removed: Tensor, ids: Tensor, key: Key) -> Tensor:
        """Fill samples x (n, *shape) under several masks each, `removed` (n, m, *shape or 1): (n, m, *shape).

        A fill that can share work between the masks of a sample does so here.
        """
        count = removed.shape[1]
        rows = x[:, None].expand(-1, count, *x.shape[1:]).flatten(0, 1)
        filled = self.impute(rows, removed.flatten(0, 1), ids.repeat_interleave(count), key)
        return filled.unflatten(0, removed.shape[:2])


@revivable
@dataclass(frozen=True)
class Constant(Fill):
    """One value everywhere, in the model's input space."""

    value: Value = 0.0
    """The number, in the model's input space."""
    name: ClassVar[str] = "constant"
    drawn: ClassVar[bool] = False

    def background(self, state: Tensor | None, x: Tensor, ids: Tensor, key: Key) -> Tensor:
        try:
            return x.new_full((1, 1, *x.shape[1:]), self.value)
        except RuntimeError as error:
            raise InputError(f"inputs of {x.dtype} cannot be filled with {self.value:g}: {error}") from error


@revivable
@dataclass(frozen=True)
class Zero(Constant):
    """Zero in the model's input space."""

    name: ClassVar[str] = "zero"

    def __post_init__(self) -> None:
        if self.value != 0.0:
            raise InputError(f"Zero() takes no value; use Constant({self.value})")


@revivable
@dataclass(frozen=True)
class Token(Fill):
    """A token id: the pad token, or a language model's mask token."""

    token_id: Index = 0
    """Number of the token in the vocabulary."""
    name: ClassVar[str] = "token"
    drawn: ClassVar[bool] = False

    def background(self, state: Tensor | None, x: Tensor, ids: Tensor, key: Key) -> Tensor:
        return x.new_full((1, 1, *x.shape[1:]), self.token_id)


@revivable
@dataclass(frozen=True)
class Mean(Fill):
    """The mean of each element over the reference rows."""

    name: ClassVar[str] = "mean"
    drawn: ClassVar[bool] = False
    needs_train: ClassVar[bool] = True

    def prepare(self, train: Tensor | None, space: Space) -> Tensor | None:
        super().prepare(train, space)
        assert train is not None
        return train.to(torch.float64).nanmean(0).to(train.dtype)[None, None]

    def background(self, state: Tensor | None, x: Tensor, ids: Tensor, key: Key) -> Tensor:
        assert state is not None
        return state


@revivable
@dataclass(frozen=True)
class Marginal(Fill):
    """Values of reference rows, so that removed columns keep a value they really take.

    The output under a mask is the mean over `rows` of them (interventional): all where there are no more,
    else so many drawn without replacement, the same for all samples, explainers and metrics of one seed.
    `Marginal(1)` lets one row stand in, another one for every sample and draw.
    """

    rows: Count = 100
    """How many reference rows the output under a mask is averaged over, at most."""
    draw: Index = 0
    """Which draw of the rows: another number takes others under the same seed."""
    name: ClassVar[str] = "marginal"
    needs_train: ClassVar[bool] = True

    def repeats_on(self, task: MaskedTask) -> int:
        return self.rows if task.train is None else min(self.rows, len(task.train))

    def draw_of(self, key: Key) -> Key:
        return (key if self.rows == 1 else Key(key.seed)) / "reference rows" / self.draw

    def follows_seed(self, task: MaskedTask) -> bool:
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


@revivable
@dataclass(frozen=True)
class Summary(Fill):
    """A few reference rows that stand for all of them, each with a weight.

    k-means on standardised columns; of each cluster the row next to its centre, weighted by the share of the
    reference rows that it is the nearest of. The output under a mask is the weighted mean over these rows.
    """

    rows: Count = 20
    """How many reference rows stand for all, at most."""
    name: ClassVar[str] = "summary"
    drawn: ClassVar[bool] = False
    needs_train: ClassVar[bool] = True

    def repeats_on(self, task: MaskedTask) -> int:
        state = None if task.train is None else fill_state(task, self)
        return self.rows if state is None else len(state)

    def prepare(self, train: Tensor | None, space: Space) -> Tensor | None:
        super().prepare(train, space)
        assert train is not None
        distinct = train.flatten(1).unique(dim=0)
        if len(distinct) <= self.rows:
            return distinct.view(-1, *train.shape[1:])
        from sklearn.cluster import KMeans

        some = train[torch.linspace(0, len(train) - 1, min(len(train), CLUSTERED)).long()]
        points = _standardised(some, train)
        found = KMeans(self.rows, n_init=4, random_state=0).fit(points.cpu().numpy())
        centres = torch.from_numpy(found.cluster_centers_).to(points)
        return some[torch.cdist(centres, points).argmin(1).unique()]

    def weights(self, state: Tensor, train: Tensor) -> Tensor | None:
        nearest = torch.cdist(_standardised(train, train), _standardised(state, train)).argmin(1)
        return nearest.bincount(minlength=len(state)).double() / len(train)

    def background(self, state: Tensor | None, x: Tensor, ids: Tensor, key: Key) -> Tensor:
        assert state is not None
        return state[None]


CLUSTERED = 5000
"""Reference rows that are clustered, at most: evenly spaced ones where there are more."""


def _standardised(rows: Tensor, train: Tensor) -> Tensor:
    """Rows in units of the spread of each element over the reference rows; what is missing is at the mean."""
    known, flat = train.double().flatten(1), rows.double().flatten(1)
    mean = known.nanmean(0)
    spread = (known - mean).square().nanmean(0).sqrt()
    return ((flat - mean) / torch.where(spread > 0, spread, 1.0)).nan_to_num(0.0)


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


@revivable
@dataclass(frozen=True)
class NoisyLinear(Fill):
    """ROAD's noisy linear imputation: each removed pixel is the weighted mean of its neighbours, plus noise.

    Direct neighbours weigh twice the diagonal ones, so the removed pixels v of a row solve the sparse system
    (D - W) v = W x_kept. In float64 it is solved to 1e-12; float32 takes two steps, above 32 pixels three,
    which leave an error below the noise: of the range of a smooth image 0.0007 at most where half is removed,
    0.0002 to 0.004 where nine tenths are.
    """

    noise: NotNegative = 0.01
    """Standard deviation of the noise, in units of the input."""
    name: ClassVar[str] = "noisy_linear"
    looks_at_mask: ClassVar[bool] = True

    def impute(self, x: Tensor, removed: Tensor, ids: Tensor, key: Key) -> Tensor:
        return self.impute_masks(x, removed[:, None], ids, key)[:, 0]

    def impute_masks(self, x: Tensor, removed: Tensor, ids: Tensor, key: Key) -> Tensor:
        _images_only(self.name, x)
        if not x.is_floating_point():
            # whole numbers are filled in as real ones, and rounded
            return self.impute_masks(x.double(), removed, ids, key).round().to(x.dtype)
        shape = (*removed.shape[:2], *x.shape[1:])
        hole = removed.expand(*shape[:2], -1, *shape[3:])
        rows = x[:, None].expand(shape)
        filled = solve_holes(rows.flatten(0, 1), hole.flatten(0, 1)).view(shape)
        if self.noise:
            # one draw per sample, the same under all its masks, so that they differ in the mask alone
            drawn = keyed.normal(key / "road", ids, 0, x[0].numel(), x.dtype).view(x.shape)
            filled.add_(drawn[:, None], alpha=self.noise)
        return torch.where(hole, filled, rows)


def _images_only(name: str, x: Tensor) -> None:
    if x.dim() != 4:
        raise NotApplicableError(f"fill '{name}' works on images (N, C, H, W), not on {tuple(x.shape)}")


@revivable
@dataclass(frozen=True)
class PartValues(Fill):
    """One value for each part of a joint input."""

    widths: tuple[Index, ...] = ()
    """How many elements each part has."""
    values: tuple[Value, ...] = ()
    """What removed elements of each part become."""
    name: ClassVar[str] = "part_values"
    drawn: ClassVar[bool] = False

    def background(self, state: Tensor | None, x: Tensor, ids: Tensor, key: Key) -> Tensor:
        each = zip(self.widths, self.values, strict=True)
        return torch.cat([x.new_full((width,), value) for width, value in each])[None, None]


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
    """Accept a fill, its name, a number, or the user's function.

    Parameters
    ----------
    fill : Fill, str, float, or callable
        A fill, the name of one, a constant, or a function (rows, removed) -> rows.

    Returns
    -------
    Fill
        The fill.

    Raises
    ------
    InputError
        Where it is none of these.
    """
    if isinstance(fill, Fill):
        return fill
    if isinstance(fill, type) and issubclass(fill, Fill):
        return fill()
    if isinstance(fill, numbers.Real):
        return Constant(float(fill))
    if isinstance(fill, str):
        kinds = (Zero, Constant, Token, Mean, Marginal, Summary, UniformNoise, Blur, NoisyLinear)
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


class Backgrounds:
    """What shows through removed features, made for as many samples at once as fill a chunk.

    Blocks need a few samples, and often for the same ones again; drawing noise or blurring for each of
    them would take longer than building their rows.
    """

    def __init__(self, task: MaskedTask, fill: Fill, key: Key) -> None:
        self.state = fill_state(task, fill)
        self.weights = fill_weights(task, fill)
        self._task, self.fill = task, fill
        self.repeats = fill.repeats_on(task)
        self.key = key.of("fill") if fill.drawn else key
        self._few = max(1, task.predictor.rows // self.repeats)
        self._start = self._stop = 0
        self._made: Tensor | None = None

    def __call__(self, rows: slice) -> Tensor:
        """(samples or 1, repeats, *input shape)."""
        if self._made is None or rows.start < self._start or rows.stop > self._stop:
            task = self._task
            self._start = rows.start
            self._stop = min(len(task.inputs), max(rows.stop, rows.start + self._few))
            some = slice(self._start, self._stop)
            self._made = self.fill.background(self.state, task.inputs[some], task.draw_ids[some], self.key)
        if len(self._made) == 1:
            return self._made
        return self._made[rows.start - self._start : rows.stop - self._start]

    def mean(self, values: Tensor, dim: int) -> Tensor:
        """The mean of what was found for each background, along `dim`."""
        if self.weights is None:
            return values.mean(dim)
        return (values.movedim(dim, -1) * self.weights.to(values)).sum(-1)

    def show(self, removed: Tensor, rows: slice, out: Tensor) -> None:
        """Write samples into `out` (samples, masks, repeats, *shape), filled where `removed`.

        `removed` is (samples, masks, 1, *shape), or 1 where the truth is the same for several elements.
        """
        x = self._task.inputs[rows]
        if self.fill.looks_at_mask:
            each = removed[:, :, 0].expand(*out.shape[:2], *removed.shape[3:])
            out.copy_(self.fill.impute_masks(x, each, self._task.draw_ids[rows], self.key).view_as(out))
            return
        torch.where(removed, self(rows)[:, None], x[:, None, None], out=out)

    def matters(self) -> Tensor | None:
        """(N, V): whether removing a feature changes its input at all; None where masks decide that."""
        if self.fill.looks_at_mask:
            return None
        task, changes = self._task, []
        for at in range(0, len(task.inputs), self._few):
            rows = slice(at, min(len(task.inputs), at + self._few))
            own, other = task.inputs[rows, None], self(rows)
            differs = own != other
            if not task.predictor.differentiable:  # where a missing value is not changed into itself
                differs &= ~((own != own) & (other != other))
            changes.append(differs.any(1))
        matters = task.space.anywhere(torch.cat(changes))
        return matters if task.space.valid is None else matters & task.space.valid


def fill_state(task: MaskedTask, fill: Fill) -> Tensor | None:
    """What a fill estimates from the task's reference rows."""
    if task.space.kind == "unit" and not (isinstance(fill, Constant) and fill.value == 0):
        raise NotApplicableError(
            f"a unit that is off is 0, and fill '{fill.name}' would leave it partly on; what off means is "
            "said by off=... where the task is made"
        )
    return _prepared(task, fill, task.space.kind, tuple(task.space.labels.shape))


@train_fact
def _prepared(task: MaskedTask, fill: Fill, _kind: str, _shape: tuple[int, ...]) -> Tensor | None:
    return fill.prepare(task.train, task.space)


@train_fact
def fill_weights(task: MaskedTask, fill: Fill) -> Tensor | None:
    """The weights of the rows that a fill takes from the reference rows, if they differ."""
    state = None if task.train is None else fill_state(task, fill)
    return None if state is None or task.train is None else fill.weights(state, task.train)
