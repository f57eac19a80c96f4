"""Masked texts: short rows are asked with short ones, and while answers are remembered no row is asked twice.

A removed token is padding, and a model that leaves padding out takes half as long over half a text; but among
whole texts it would be padded again. Explainers, metrics and controls meet the same rows again and again: one
token gone, all but one, nothing left.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import local
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from veridical.core import key as keyed
from veridical.models.padding import PaddingBlind
from veridical.perturb.answer_table import AnswerTable

if TYPE_CHECKING:
    from veridical.models.predictor import Predictor
    from veridical.values.task import Task

ROWS_AT_ONCE = 4096
"""Masked texts that are written out and sorted together."""
MORE_TOKENS = 4
"""Times as many tokens as in the plan's chunk go together: rows without gradients need one layer's memory."""

ABOUT = 0.75
"""Shorter than this share of the longest, rows of a CPU go in a chunk of their own, as small as it may be."""


class _Remembered(local):
    """What was answered to rows of tokens, for each predictor; None while nothing is remembered."""

    tables: dict[Predictor, AnswerTable] | None = None


REMEMBERED = _Remembered()


@contextmanager
def remembering(on: bool = True) -> Iterator[None]:
    """While this is open, a row of tokens that was asked is not asked again, whoever asks.

    Rows are then counted where they were first asked, so that costs depend on who came before: `on=False`
    is for who wants to know what something costs alone.
    """
    before = REMEMBERED.tables
    REMEMBERED.tables = ({} if before is None else before) if on else None
    try:
        yield
    finally:
        REMEMBERED.tables = before


@dataclass(frozen=True, eq=False)
class TokenRows:
    """Asks a text model about rows of token ids; must run inside a session."""

    predictor: Predictor
    """For as many rows at once as short texts allow."""
    tokens: int
    """Tokens that may go together."""
    table: AnswerTable | None
    """What is remembered."""

    @classmethod
    def of(cls, task: Task) -> TokenRows | None:
        """For a task whose inputs are whole numbers; None where more than these tells what is answered."""
        predictor = task.predictor
        blind = isinstance(predictor.source.module, PaddingBlind)
        if not blind or task.inputs.dim() != 2 or task.side:
            return None
        if predictor.wraps or predictor.padded_to == 1:
            return None
        tables = REMEMBERED.tables
        table = None if tables is None else tables.setdefault(predictor, AnswerTable())
        wide = replace(predictor, plan=replace(predictor.plan, rows=ROWS_AT_ONCE))
        return cls(wide, MORE_TOKENS * predictor.rows * task.inputs.shape[1], table)

    def __call__(self, rows: Tensor) -> Tensor:
        """Outputs (R, C) of rows (R, L)."""
        if self.table is None:
            return self._by_length(rows)
        keys = keyed.content_ids(rows)
        place, known = self.table.find(keys)
        if not bool(known.all()):
            new = ~known
            if not self.table.has_room(int(new.sum())):
                self.table.held, new = None, torch.ones_like(known)
            fresh, where = keys[new].unique(return_inverse=True)
            first = where.new_full((len(fresh),), len(where)).scatter_reduce(
                0, where, torch.arange(len(where), device=where.device), "amin"
            )
            self.table.add(fresh, self._by_length(rows[new][first]))
            place, _ = self.table.find(keys)
        assert self.table.held is not None
        return self.table.held[1][place]

    def _by_length(self, rows: Tensor) -> Tensor:
        """The longest rows first; together go those of about one length, within the tokens of a chunk."""
        module = self.predictor.source.module
        assert isinstance(module, PaddingBlind)
        lengths, order = module.lengths(rows).sort(descending=True, stable=True)
        long, found, at = lengths.tolist(), [], 0
        while at < len(long):
            stop = self._stop(long, at)
            found.append(self.predictor.chunk(rows[order[at:stop]]))
            at = stop
        answers = torch.cat(found)
        return torch.empty_like(answers).index_copy_(0, order, answers)

    def _stop(self, long: list[int], at: int) -> int:
        """Where the rows end that go with the one at this place, given all lengths in descending order."""
        few = self.predictor.padded_to
        most = min(len(long), at + max(few, min(self.tokens // max(1, long[at]), ROWS_AT_ONCE) // few * few))
        if not self.predictor.on_host:
            return most  # to start another chunk costs a GPU more than padding does
        stop = at + few
        while stop < most and long[stop] > ABOUT * long[at]:
            stop += few
        return min(stop, most)
