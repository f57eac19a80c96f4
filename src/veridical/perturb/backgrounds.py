"""What takes the place of a removed feature.

Most fills are a *background*: an input, independent of the mask, whose elements show through wherever a
feature is removed. Those that look at the mask (`impute`) work on the masked rows themselves. Here are what
every fill is, the fills that show the same to all samples, and what of a fill the masked rows of a task show.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from veridical.core.allowed import Index, Value
from veridical.core.key import Key
from veridical.core.settings import Settings, revivable
from veridical.errors import InputError, NotApplicableError

if TYPE_CHECKING:
    from veridical.values.space import Space
    from veridical.values.task import Task


@dataclass(frozen=True)
class Fill(Settings):
    """Base of the fills: `prepare` per task, then `background` per sample or `impute` per mask, each once."""

    name: ClassVar[str] = ""
    needs_train: ClassVar[bool] = False
    looks_at_mask: ClassVar[bool] = False
    drawn: ClassVar[bool] = True
    """Whether its values are drawn by a key; others follow from the task alone."""

    def repeats_on(self, task: Task) -> int:
        """How many backgrounds are tried for every mask, over which the model's answers are averaged."""
        return 1

    def draw_of(self, key: Key) -> Key:
        """What drawn values follow besides the task."""
        return key

    def follows_seed(self, task: Task) -> bool:
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

    def background(self, state: Tensor | None, x: Tensor, ids: Tensor, key: Key) -> Tensor:
        """What shows through removed features: (B or 1, repeats, *input shape) for rows x (B, *shape)."""
        raise NotApplicableError(f"fill '{self.name}' depends on the mask and has no background")

    def impute(self, x: Tensor, removed: Tensor, ids: Tensor, key: Key) -> Tensor:
        """Fill rows x (R, *shape) where `removed` (broadcast over x); only if `looks_at_mask`."""
        raise NotApplicableError(f"fill '{self.name}' has a background and does not look at the mask")

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


_FIXED = (Constant, Zero, Token, Mean)
"""Fills that show one and the same for all samples and draws; a fill made of one of them may do otherwise."""
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_WORTH_IT = 2**13  # numbers from which on the steps cost less than guessing
_FACTS_KEPT = 2**26  # features of all samples of which it is kept whether they matter: 64 MB


class Backgrounds:
    """What shows through removed features, made for as many samples at once as fill a chunk.

    Blocks ask for a few samples, and often for the same ones again; drawing noise or blurring for each of
    them would take longer than building their rows.
    """

    def __init__(self, task: Task, fill: Fill, key: Key) -> None:
        self.state = fill_state(task, fill)
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
            self._made = self.fill.background(self.state, task.inputs[some], task.ids[some], self.key)
        if len(self._made) == 1:
            return self._made
        return self._made[rows.start - self._start : rows.stop - self._start]

    def show(self, removed: Tensor, rows: slice, out: Tensor) -> None:
        """Write samples into `out` (samples, masks, repeats, *shape), filled where `removed`.

        `removed` is (samples, masks, 1, *shape), or 1 where the truth is the same for several elements.
        """
        x = self._task.inputs[rows]
        if self.fill.looks_at_mask:
            each = removed[:, :, 0].expand(*out.shape[:2], *removed.shape[3:])
            out.copy_(self.fill.impute_masks(x, each, self._task.ids[rows], self.key).view_as(out))
            return
        shown = _by_bits if self._task.predictor.on_host else _by_choice
        shown(removed, self(rows)[:, None], x[:, None, None], out)

    def matters(self) -> Tensor | None:
        """(N, V): whether removing a feature changes its input at all; None where masks decide that."""
        task, fill = self._task, self.fill
        if fill.looks_at_mask:
            return None
        if type(fill) not in _FIXED or len(task.inputs) * task.space.n_features > _FACTS_KEPT:
            return self._changing()
        matters: Tensor = task.cached(f"features that {fill!r} changes", self._changing)
        return matters

    def _changing(self) -> Tensor:
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


def _by_choice(removed: Tensor, other: Tensor, own: Tensor, out: Tensor) -> None:
    """Write the others where `removed`, else one's own."""
    torch.where(removed, other, own, out=out)


def _by_bits(removed: Tensor, other: Tensor, own: Tensor, out: Tensor) -> None:
    """The same on a CPU, where a choice guesses each truth: five times as slow where masks are random."""
    bits = _BITS.get(out.element_size())
    if bits is None or out.numel() < _WORTH_IT or other.dtype != own.dtype:
        return _by_choice(removed, other, own, out)
    mine, written = own.view(bits), out.view(bits)
    gone = removed.view(torch.uint8).to(bits).neg_()  # all bits of a number, or none
    torch.bitwise_and(mine ^ other.view(bits), gone, out=written).bitwise_xor_(mine)
    return None


def fill_state(task: Task, fill: Fill) -> Tensor | None:
    """What a fill estimates from the task's reference rows, computed once."""
    if task.space.kind == "unit" and not (isinstance(fill, Constant) and fill.value == 0):
        raise NotApplicableError(
            f"a unit that is off is 0, and fill '{fill.name}' would leave it partly on; what off means is "
            "said by off=... where the task is made"
        )
    name = f"fill {fill!r} over {task.space.kind} {tuple(task.space.labels.shape)}"
    state: Tensor | None = task.from_train(name, partial(fill.prepare, task.train, task.space))
    return state
