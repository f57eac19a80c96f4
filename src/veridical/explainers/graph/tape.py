"""A run that goes back by its rules' own ways: one function to autograd, whatever happens inside.

A graph costs more than many an operation does: autograd makes a node of each and calls it by Python. Here the
ways back are laid on a tape as the steps are taken, and gone in the opposite order, as autograd would.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from veridical.explainers.graph.products import added, dense

Key = int | tuple[int, ...]
"""The name of a value of a run."""
Tape = list[tuple[tuple[Key, ...], tuple[Key | None, ...], Callable[[Any], Sequence[Any]]]]
"""Of each step the names of what it answered, of what it goes back to (None: nothing), and the way."""


class _Taped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, given: tuple[Any, Any, list[Tensor]], x: Tensor) -> Tensor:
        plan, run, inputs = given
        ctx.run, ctx.ends, ctx.tape = run, plan.ends, Tape()
        answer: Tensor = plan.forward([run, x.detach(), *inputs[1:]], ctx.tape)
        return answer.detach()

    @staticmethod
    def backward(ctx: Any, relevance: Tensor) -> tuple[None, Tensor | None]:
        first, last = ctx.ends
        tape = ctx.tape.copy() if ctx.run.again else ctx.tape
        return None, gone_back(tape, {first: relevance}).get(last)


def taped(plan: Any, run: Any, inputs: list[Tensor]) -> Tensor:
    """The answer of a plan, whose gradient with respect to the first input is by its tape."""
    answer: Tensor = _Taped.apply((plan, run, inputs), inputs[0])  # type: ignore[no-untyped-call]
    return answer


def gone_back(tape: Tape, arrived: dict[Key, Any]) -> dict[Key, Any]:
    """Go all ways on a tape, the last first; each is left behind, with what it holds, once it is gone."""
    while tape:
        outs, ins, back = tape.pop()
        if len(outs) == 1:
            above = arrived.pop(outs[0], None)
            if above is None:
                continue
        else:
            above = [arrived.pop(out, None) for out in outs]
            if all(part is None for part in above):
                continue
        for key, part in zip(ins, back(above), strict=True):
            if key is not None and part is not None:
                before = arrived.get(key)
                arrived[key] = part if before is None else added(before, part)
    return {key: dense(part) for key, part in arrived.items()}
