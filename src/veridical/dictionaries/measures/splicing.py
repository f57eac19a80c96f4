"""What the model loses when its layer's activations are replaced by what a dictionary rebuilds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div

from veridical.concepts.layers import first_tensor, with_first
from veridical.dictionaries.bench import Bench
from veridical.dictionaries.subject import Subject
from veridical.errors import NotApplicableError

Change = Callable[[Tensor], Tensor]
"""Rows (n, D) in the place of rows (n, D)."""


class Spliced(nn.Module):
    """The model with one layer's answer changed row by row."""

    def __init__(self, module: nn.Module, bench: Bench, change: Change) -> None:
        super().__init__()
        self.module = module
        self.layer, self.axis, self.skip, self.change = bench.layer, bench.axis, bench.skip, change

    def forward(self, *args: Any, **named: Any) -> Any:
        def hook(_module: nn.Module, _given: tuple[Any, ...], answer: Any) -> Any:
            found = first_tensor(answer)
            assert found is not None
            states = found.movedim(self.axis, -1)
            flat = states.reshape(len(states), -1, states.shape[-1]).clone()
            rows = flat[:, self.skip :]
            flat[:, self.skip :] = self.change(rows.flatten(0, 1)).to(rows).reshape(rows.shape)
            return with_first(answer, flat.reshape(states.shape).movedim(-1, self.axis))

        handle = self.module.get_submodule(self.layer).register_forward_hook(hook)
        try:
            return self.module(*args, **named)
        finally:
            handle.remove()


def spliced_outputs(bench: Bench, change: Change) -> Tensor:
    """The task's outputs (N, C) with the layer changed."""
    task = bench.task
    model = Spliced(task.predictor.model, bench, change)
    return task.predictor.with_model(model, task.predictor.output).outputs(task.inputs, task.side)


def losses(bench: Bench, outputs: Tensor) -> Tensor:
    """Cross-entropy of every sample, with its label, or with what the model itself predicts."""
    labels = bench.task.predictions if bench.task.labels is None else bench.task.labels
    return cross_entropy(outputs.float(), labels.long(), reduction="none")


def rebuilt_outputs(subject: Subject) -> Tensor:
    """Outputs through the dictionary; found once."""
    bench = subject.bench
    if bench.task.head != "multiclass":
        raise NotApplicableError(f"loss and KL need classes; the task's head is {bench.task.head}")
    held: Tensor | None = subject.__dict__.get("outputs")
    if held is None:
        dictionary = subject.dictionary
        held = spliced_outputs(bench, lambda rows: dictionary.decode(dictionary.encode(rows)))
        subject.__dict__["outputs"] = held
    return held


def loss_recovered(subject: Subject) -> Tensor:
    """`(L_mean - L_rebuilt) / (L_mean - L)`: 0 where the layer might as well be its mean, 1 without loss."""
    bench = subject.bench
    rebuilt = losses(bench, rebuilt_outputs(subject))
    centre = bench.train.mean(0)
    without = bench.once(
        "losses without the layer",
        lambda: losses(bench, spliced_outputs(bench, lambda rows: centre.expand_as(rows))),
    )
    clean = losses(bench, bench.task.outputs)
    without, clean, rebuilt = (bench.means(x, samples=True) for x in (without, clean, rebuilt))
    gap = without - clean
    return torch.where(gap > 1e-6, (without - rebuilt) / gap, torch.nan)


def kl(subject: Subject) -> Tensor:
    """KL(model || model through the dictionary) over classes, in nats."""
    changed = rebuilt_outputs(subject).float().log_softmax(-1)
    own = subject.bench.task.outputs.float().log_softmax(-1)
    each = kl_div(changed, own, reduction="none", log_target=True).sum(-1)
    return subject.bench.means(each, samples=True)
