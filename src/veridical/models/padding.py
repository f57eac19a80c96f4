"""Text models that do not see padding: the same answer from fewer columns, which is most of a short text."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

Left = Literal["nothing", "the end", "all"]
AGREE = 2e-5
"""How far, as a share of the largest answer, two ways to compute the same may differ in single precision."""
ROWS = 4
"""Texts on which it is tried whether padding may be left out."""


class PaddingBlind(nn.Module):
    """A model of token ids to which padding is nothing; it leaves out what it was found not to need.

    `answer` computes. Wherever somebody looks inside (hooks, gradients, a function mode), all columns are
    there: who reads layers finds every token in its place.
    """

    pad: int
    left: Left = "nothing"

    def answer(self, tokens: Tensor, places: Tensor | None = None) -> Tensor:
        """The outputs of token ids; `places` are their positions where tokens before them were left out."""
        raise NotImplementedError

    def forward(self, tokens: Tensor) -> Tensor:
        return self.answer(tokens) if watched(self) else self._answer_short(tokens, self.left)

    def lengths(self, tokens: Tensor) -> Tensor:
        """How many columns each row (R, L) takes: (R,)."""
        there = tokens != self.pad
        if self.left == "all":
            return there.sum(1)
        if self.left == "the end":
            places = torch.arange(1, tokens.shape[1] + 1, device=tokens.device)
            return (there * places).amax(1)
        return there.sum(1).fill_(tokens.shape[1])

    def try_short(self, tokens: Tensor) -> None:
        """Find out, on the shortest of these texts, how much padding can be left out without a difference."""
        few = tokens[(tokens != self.pad).sum(1).argsort()[:ROWS]]
        gaps = few.clone()
        gaps[:, 2::3] = self.pad  # as if tokens had been removed
        with torch.no_grad():
            whole = self.answer(gaps)
            ways: tuple[Left, ...] = ("all", "the end")
            for left in ways:
                try:
                    short = self._answer_short(gaps, left)
                except (RuntimeError, TypeError, ValueError):  # a model that insists on its columns
                    continue
                if bool(((whole - short).abs() <= AGREE * whole.abs().amax()).all()):
                    self.left = left
                    return

    def _answer_short(self, tokens: Tensor, left: str) -> Tensor:
        if left == "nothing":
            return self.answer(tokens)
        if left == "the end":
            return self.answer(tokens[:, : columns(tokens, self.pad)])
        there = tokens != self.pad
        most = max(1, int(there.sum(1).max()))
        places = (~there).to(torch.uint8).argsort(dim=1, stable=True)[:, :most]
        return self.answer(tokens.gather(1, places), places)


def columns(tokens: Tensor, pad: int) -> int:
    """How many columns there are up to the last that is not padding in every row, one at least."""
    there = (tokens != pad).any(0).nonzero()
    return int(there[-1]) + 1 if len(there) else 1


def mode_open() -> bool:
    """Whether somebody follows every function of torch, as who reads attention weights does."""
    return bool(torch._C._len_torch_function_stack())


def watched(model: nn.Module) -> bool:
    """Whether gradients, hooks or a function mode look at what happens inside a model."""
    if torch.is_grad_enabled() or mode_open():
        return True
    return any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
