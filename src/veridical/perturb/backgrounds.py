"""What of a fill the masked rows of a task show."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from veridical.core.key import Key
from veridical.errors import NotApplicableError
from veridical.perturb.fills import Constant, Fill, Mean, Token, Zero

if TYPE_CHECKING:
    from veridical.values.task import Task

_FIXED = (Constant, Zero, Token, Mean)
"""Fills that show one and the same for all samples and draws; a fill made of one of them may do otherwise."""
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
            self._made = self.fill.background(self.state, task.inputs[some], task.draw_ids[some], self.key)
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
            out.copy_(self.fill.impute_masks(x, each, self._task.draw_ids[rows], self.key).view_as(out))
            return
        torch.where(removed, self(rows)[:, None], x[:, None, None], out=out)

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
