"""Heads that are not linear, seen through their first-order expansion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from veridical.concepts.embeddings import Head
from veridical.concepts.splitting import (
    End,
    Read,
    Split,
    as_positions,
    at_layer,
    seen_of,
    trace,
)
from veridical.errors import InputError, NotApplicableError, unknown_name
from veridical.models.predictor import Side, call, take_side
from veridical.values.task import Task

_ROWS = 64
"""Rows over which an expansion is averaged at most, evenly spread over those at hand."""
_ALONG = 8
"""Points of a path, each the middle of its stretch."""
_SAME = 1e-6
"""Share of the largest output below which answers to one embedding are the same for all rows."""

Where = Literal["mean", "samples", "path"]


class _Moved(nn.Module):
    """The model with what one layer gives moved to `base + share (h - base)`, a leaf that gradients reach."""

    def __init__(self, module: nn.Module, layer: str, end: End) -> None:
        super().__init__()
        self.module = module
        self.layer, self.end = layer, end
        self.base: Tensor | None = None
        self.share = 1.0
        self.leaf = torch.empty(0)

    def move(self, found: Tensor) -> Tensor:
        moved = found.detach()
        if self.base is not None:
            moved = self.base + self.share * (moved - self.base)
        self.leaf = moved.clone().requires_grad_(True)
        return self.leaf.clone()  # a layer after it may work in place, which a leaf does not allow

    def forward(self, *args: Any, **named: Any) -> Any:
        with at_layer(self.module, self.layer, self.end, self.move):
            return self.module(*args, **named)


def expand(task: Task, layer: str | None = None, read: Read | None = None, at: Where = "mean") -> Split:
    """Split at any layer; the head is `F h + b` with derivatives averaged over up to 64 train rows.

    At the "mean" all rows have the mean embedding there and what else the network makes of them elsewhere
    (on branches around the layer); at the "samples" each has its own; along the "path" the derivatives from
    the one to the other are averaged, so that `F (h - h0)` is what moving there changed.
    """
    if at not in ("mean", "samples", "path"):
        raise InputError(f"a head is expanded at the 'mean', the 'samples' or along the 'path'; got {at!r}")
    calls, _ = trace(task)
    end: End = "output"
    if layer is None:
        linear = [name for name, seen in calls.items() if isinstance(seen.module, nn.Linear)]
        if not linear:
            raise NotApplicableError(
                "the model has no nn.Linear; name the layer whose answer is the embedding"
            )
        layer, end = linear[-1], "input"
    if layer not in calls:
        raise unknown_name("layer", layer, [name for name in calls if name])
    seen = calls[layer].input if end == "input" else calls[layer].output
    if len(seen) != min(4, len(task)):
        raise NotApplicableError(f"layer '{layer}' answers {tuple(seen.shape)}, not one answer per sample")
    read, last = _reading(seen, calls[layer].module, layer, read)
    width = as_positions(seen, last).shape[2] if read != "each" else seen[0].numel()
    place = seen.device
    nothing = torch.zeros(task.n_outputs, width, device=place)
    unknown = Head(nothing, nothing[:, 0], task.head, layer, exact=False)
    parts = Split(task, unknown, layer, end, read=read, channels_last=last)
    rows, side = (task.inputs, task.side) if task.train is None else (task.train, task.train_side)
    mean = (parts.test() if task.train is None else parts.train()).values.double().mean(0)
    few = torch.linspace(0, len(rows) - 1, min(_ROWS, len(rows)), device=rows.device).round().long()
    weight, answer = _derivatives(parts, rows[few], take_side(side, few), mean, at)
    bias = answer.double() - weight.double() @ mean
    return replace(parts, head=Head(weight, bias, task.head, layer, False))


def _reading(seen: Tensor, module: nn.Module | None, layer: str, read: Read | None) -> tuple[Read, bool]:
    """What becomes one vector, and whether dimensions come last (tokens) or after the samples (maps)."""
    if seen.dim() == 2:
        return "vector", True
    if read not in ("mean", "first", "last", "each"):
        raise NotApplicableError(
            f"layer '{layer}' answers {tuple(seen.shape[1:])} per sample and an embedding is one vector; say "
            "what it is: read='mean' over positions or tokens, 'first' or 'last' of them, or 'each'"
        )
    waves = any(isinstance(m, nn.Conv1d | nn.BatchNorm1d) for m in (module or nn.Identity()).modules())
    return read, seen.dim() == 3 and not waves


def _derivatives(parts: Split, rows: Tensor, side: Side, mean: Tensor, at: Where) -> tuple[Tensor, Tensor]:
    """F (C, D) and the mean output that it is laid through, averaged over the rows and the points."""
    task = parts.task
    view = _Moved(task.predictor.model, parts.layer, parts.end)
    predictor = task.predictor.with_model(view)
    shares: Sequence[float] = {
        "mean": (0.0,),
        "samples": (1.0,),
        "path": [(i + 0.5) / _ALONG for i in range(_ALONG)],
    }[at]
    pieces = torch.arange(len(rows), device=rows.device).split(max(1, min(predictor.rows, _ROWS)))
    with predictor.session(grad=True) as model:
        own = [_evaluate(model, view, rows[i], take_side(side, i), None, 1.0) for i in pieces]
        # of a map the mean is that of these rows: of all of them it might not fit
        leaves = torch.cat([leaf for leaf, _ in own])
        base = leaves.mean(0) if leaves.dim() > 2 else mean.to(leaves)
        answer = torch.cat([outputs for _, outputs in own]).mean(0)
        if at == "mean":
            held = [_evaluate(model, view, rows[i], take_side(side, i), base, 0.0)[1] for i in pieces]
            outputs = torch.cat(held)
            answer = outputs.mean(0)
            if bool(((outputs - answer).abs() <= _SAME * outputs.abs().max()).all()):
                pieces = (pieces[0][:1],)  # no branch leads around the layer: one row tells all
        found = torch.zeros_like(parts.head.weight)
        for share in shares:
            for i in pieces:
                outputs = call(_at(model, view, base, share), rows[i], take_side(side, i))
                for c in range(task.n_outputs):
                    keep = c < task.n_outputs - 1
                    slope = torch.autograd.grad(outputs[:, c].sum(), view.leaf, retain_graph=keep)[0]
                    found[c] += _of_read(as_positions(slope, parts.channels_last), parts).double().sum(0)
    return found / (len(shares) * sum(len(i) for i in pieces)), answer


def _at(model: nn.Module, view: _Moved, base: Tensor | None, share: float) -> nn.Module:
    view.base, view.share = base, share
    return model


def _evaluate(
    model: nn.Module, view: _Moved, rows: Tensor, side: Side, base: Tensor | None, share: float
) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        outputs = call(_at(model, view, base, share), rows, side)
    return view.leaf.detach(), outputs.detach()


def _of_read(slope: Tensor, parts: Split) -> Tensor:
    """The derivative for the vector that is read: of a mean, that of moving all positions together."""
    if parts.read == "mean":
        return slope.sum(1)
    return seen_of(slope, parts, slope)
