"""Where a model can be opened: its layers and matrix products, and a tap that reads one of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from veridical.models.predictor import take_side
from veridical.values.task import Task

End = Literal["input", "output", "product"]
"""What is read: a layer's input, its answer, or the left side of a matrix product that no layer owns."""

_PRODUCTS = {torch.ops.aten.mm.default: 0, torch.ops.aten.addmm.default: 1, torch.ops.aten.bmm.default: 0}
"""Matrix products as torch carries them out, with the place of their left side among the arguments."""


@dataclass(frozen=True, eq=False)
class Call:
    """What one layer was given and answered, with the weights it used."""

    module: nn.Module | None
    input: Tensor
    output: Tensor
    weight: Tensor
    bias: Tensor | None = None


def first_tensor(value: Any) -> Tensor | None:
    """The tensor that a layer hands on: blocks of transformers answer it as the first of several."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, tuple | list) and value:
        return first_tensor(value[0])
    return None


def with_first(value: Any, new: Tensor) -> Any:
    """The same answer with its tensor replaced."""
    if isinstance(value, Tensor):
        return new
    return type(value)((with_first(value[0], new), *value[1:]))


class _Products(TorchDispatchMode):
    """Notes every matrix product, whoever asks for it: a layer, `F.linear`, `@` or `torch.einsum`."""

    def __init__(self, note: Callable[[int, Tensor, Tensor, Tensor | None, Tensor], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.note = note
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        answer = func(*args, **(kwargs or {}))
        if func in _PRODUCTS:
            at = _PRODUCTS[func]
            left, right, out = args[at], args[at + 1], answer
            if left.dim() == 3 and len(left) == 1:  # einsum multiplies batches, of one
                left, right, out = left[0], right[0], out[0]
            if left.dim() == 2:
                self.note(self.count, left, right, args[0] if at else None, out)
                self.count += 1
        return answer


def trace(task: Task, with_products: bool = False) -> tuple[dict[str, Call], list[Call]]:
    """Layers in the order in which they finish on a few rows, the model itself last; and all products.

    Products are noted only if asked for: torch loads much of itself to watch its own operations.
    """
    calls: dict[str, Call] = {}
    products: list[Call] = []
    few = slice(0, 4)

    def note(name: str, module: nn.Module, given: tuple[Any, ...], answer: Any) -> None:
        found = first_tensor(answer)
        if given and isinstance(given[0], Tensor) and found is not None:
            weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
            calls.pop(name, None)
            calls[name] = Call(
                module,
                given[0].detach().clone(),
                found.detach().clone(),
                weight.detach().clone() if isinstance(weight, Tensor) else torch.empty(0),
                bias.detach().clone() if isinstance(bias, Tensor) else None,
            )

    def product(_at: int, left: Tensor, right: Tensor, added: Tensor | None, answer: Tensor) -> None:
        products.append(Call(None, left.detach(), answer.detach(), right.detach().T, added))

    hooks = [
        module.register_forward_hook(partial(note, name))
        for name, module in task.predictor.model.named_modules()
        if not isinstance(module, torch.jit.ScriptModule)
    ]
    try:
        watched = _Products(product) if with_products else nullcontext()
        with task.session() as model, watched:
            side = take_side(task.side, few)
            rows = task.inputs[few]
            task.uncounted(lambda: model(rows, **side) if isinstance(side, dict) else model(rows, *side))
    finally:
        for hook in hooks:
            hook.remove()
    return calls, products


def as_positions(found: Tensor, channels_last: bool) -> Tensor:
    """A layer's answer as vectors (N, J, D), one at each position; J = 1 where it is one vector."""
    if found.dim() == 2:
        return found[:, None]
    return found.flatten(1, -2) if channels_last else found.flatten(2).transpose(1, 2)


class Tap(nn.Module):
    """The model and, beside its answer, what one layer or product was given or answered."""

    def __init__(self, module: nn.Module, layer: str, end: End, product: int = 0) -> None:
        super().__init__()
        self.module = module
        self.layer, self.end, self.product = layer, end, product

    def forward(self, *args: Any, **named: Any) -> tuple[Any, Tensor]:
        # copies: a layer that works in place would write over what it was given
        seen: list[Tensor] = []

        def note(_module: nn.Module, given: tuple[Any, ...], answer: Any) -> None:
            found = first_tensor(answer)
            if found is not None:
                seen.append(found.clone())

        def before(_module: nn.Module, given: tuple[Any, ...]) -> None:
            seen.append(given[0].clone())

        def product(at: int, left: Tensor, *rest: Any) -> None:
            if at == self.product:
                seen.append(left.clone())

        if self.end == "product":
            with _Products(product):
                return self.module(*args, **named), seen[-1]
        target = self.module.get_submodule(self.layer)
        hook = target.register_forward_pre_hook(before) if self.end == "input" else None
        handle = hook or target.register_forward_hook(note)
        try:
            answer = self.module(*args, **named)
        finally:
            handle.remove()
        return answer, seen[-1]
