"""Masked texts: short rows are evaluated together with short ones.

A removed token is padding, and a model that leaves padding out takes half as long over half a text; but among
whole texts it would be padded again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from veridical.models.padding import PaddingBlind

if TYPE_CHECKING:
    from veridical.models.predictor import Predictor
    from veridical.values.task import Task

ROWS_AT_ONCE = 4096
"""Masked texts that are written out and sorted together."""
MORE_TOKENS = 4
"""Times as many tokens as in the plan's chunk go together: rows without gradients need one layer's memory."""

ABOUT = 0.75
"""Shorter than this share of the longest, rows of a CPU go in a chunk of their own, as small as it may be."""


@dataclass(frozen=True, eq=False)
class TokenRows:
    """Evaluates a text model on rows of token ids; must run inside a session."""

    predictor: Predictor
    """For as many rows at once as short texts allow."""
    tokens: int
    """Tokens that may go together."""

    @classmethod
    def of(cls, task: Task) -> TokenRows | None:
        """For a task whose inputs are whole numbers; None where more than these tells what is answered."""
        predictor = task.predictor
        blind = isinstance(predictor.source.module, PaddingBlind)
        if not blind or task.inputs.dim() != 2 or task.side:
            return None
        if predictor.wraps or predictor.padded_to == 1:
            return None
        wide = replace(predictor, plan=replace(predictor.plan, rows=ROWS_AT_ONCE))
        return cls(wide, MORE_TOKENS * predictor.rows * task.inputs.shape[1])

    def __call__(self, rows: Tensor) -> Tensor:
        """Outputs (R, C) of rows (R, L): the longest first, together those of about one length."""
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
