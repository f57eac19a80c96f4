"""Language models with gates as anybody would write them: one prompt at a time, no padding, plain hooks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

from tests.reference.gef import weight_noise
from veridical.core.key import Key
from veridical.functional import round_to_grid

Respond = Callable[[nn.Module, int, Tensor], Tensor]
"""(model, number of the prompt, gates) -> the response, which can be differentiated."""


def log_ratio(model: nn.Module, task: Any, row: int) -> Tensor:
    """The log-probability of the answer less that of the foil, which differ in their last token."""
    prompt, answer = task.prompts[row], task.answers[row]
    device = next(model.parameters()).device
    tokens = torch.tensor([[*prompt.ids, *answer.tokens[:-1]]], device=device)
    out = model(tokens)
    logits = (out.logits if hasattr(out, "logits") else out)[0, len(prompt.ids) - 1 :].log_softmax(-1)

    def total(said: tuple[int, ...]) -> Tensor:
        return torch.stack([logits[place, token] for place, token in enumerate(said)]).sum()

    return total(answer.tokens) - (total(answer.foil_tokens) if answer.foil_tokens else 0.0)


def over_tokens(task: Any, stand_in: int) -> Respond:
    """Gates of the units of prompts: embeddings of tokens that are off are those of another token."""

    def respond(model: nn.Module, row: int, gates: Tensor) -> Tensor:
        owner = task.prompts[row].unit

        def blend(layer: nn.Module, _given: Any, embedded: Tensor) -> Tensor:
            rows = []
            for place in range(embedded.shape[1]):
                own = owner[place] if place < len(owner) else -1
                gate = gates[own] if own >= 0 else 1.0
                rows.append(gate * embedded[0, place] + (1 - gate) * layer.weight[stand_in])
            return torch.stack(rows)[None]

        layer = next(m for m in model.modules() if isinstance(m, nn.Embedding))
        handle = layer.register_forward_hook(blend)
        try:
            return log_ratio(model, task, row)
        finally:
            handle.remove()

    return respond


def _joins(model: nn.Module) -> list[nn.Module]:
    """The projections that join the heads, layer by layer."""
    return [m for n, m in model.named_modules() if n.rsplit(".", 1)[-1] in ("out", "out_proj", "o_proj")]


def _states(model: nn.Module, task: Any, row: int) -> list[Tensor]:
    """What enters each projection for one prompt (places, width)."""
    seen: list[Tensor] = []
    handles = [
        m.register_forward_pre_hook(lambda _m, x: seen.append(x[0][0].detach())) for m in _joins(model)
    ]
    with torch.no_grad():
        log_ratio(model, task, row)
    for handle in handles:
        handle.remove()
    return seen


def over_heads(task: Any, heads: int, off: str, others: Any = None) -> Respond:
    """Gates of heads: off is zero, the mean over all tokens of `others`, or the state in the pair there."""

    def respond(model: nn.Module, row: int, gates: Tensor) -> Tensor:
        instead: list[Any] = [0.0] * len(_joins(model))
        if off == "paired":
            instead = _states(model, others, row)
        elif off == "mean":
            every = [_states(model, others, number) for number in range(len(others))]
            instead = [torch.cat(layer).mean(0) for layer in zip(*every, strict=True)]
        handles = []
        for number, layer in enumerate(_joins(model)):

            def change(_m: nn.Module, given: tuple[Tensor], number: int = number) -> tuple[Tensor]:
                size = given[0].shape[-1] // heads
                share = gates[number * heads : (number + 1) * heads].repeat_interleave(size)
                return (share * given[0] + (1 - share) * instead[number],)

            handles.append(layer.register_forward_pre_hook(change))
        try:
            return log_ratio(model, task, row)
        finally:
            for handle in handles:
                handle.remove()

    return respond


def gradient_of(respond: Respond, model: nn.Module, row: int, gates: Tensor) -> Tensor:
    """d response / d gates."""
    leaf = gates.clone().requires_grad_(True)
    return torch.autograd.grad(respond(model, row, leaf), leaf)[0]


def integrated(respond: Respond, model: nn.Module, row: int, gates: Tensor, steps: int = 4) -> Tensor:
    """The path form from all gates closed, by Gauss and Legendre."""
    nodes, shares = np.polynomial.legendre.leggauss(steps)
    parts = [
        float(w) / 2 * gradient_of(respond, model, row, gates * (float(t) + 1) / 2)
        for t, w in zip(nodes, shares, strict=True)
    ]
    return gates * torch.stack(parts).sum(0)


MAPS = {
    "gradient": gradient_of,
    "saliency": lambda *given: gradient_of(*given).abs(),
    "input_x_gradient": lambda *given: given[-1] * gradient_of(*given),
    "integrated_gradients": integrated,
}


def with_noise(model: nn.Module, sigma: float, key: Key, prefix: str = "model.") -> nn.Module:
    """A deep copy whose every parameter is multiplied by 1 + sigma N(0, 1), drawn by its name."""
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for name, value in twin.named_parameters():
            drawn = weight_noise(key, prefix + name, value.shape).to(value)
            value.mul_(drawn * sigma + 1.0)
    return twin


def gef(
    respond: Respond, model: nn.Module, name: str, widths: list[int], path: tuple[float, ...], draws: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Fast-GEF: the mean over draws of Spearman(D_f, D_phi) over levels (N,), and both (N, draws, levels)."""
    dtype = next(model.parameters()).dtype

    def seen(twin: nn.Module, row: int) -> tuple[Tensor, Tensor]:
        gates = torch.ones(widths[row], dtype=dtype)
        found = MAPS[name](respond, twin, row, gates).double()
        with torch.no_grad():
            return respond(twin, row, gates), found / found.square().mean().sqrt()

    moved = torch.empty(2, len(widths), draws, len(path), dtype=torch.float64)
    clean = [seen(copy.deepcopy(model), row) for row in range(len(widths))]
    for draw in range(draws):
        for level, sigma in enumerate(path):
            twin = with_noise(model, sigma, Key(0) / "gef" / "noise" / draw / level)
            for row, (answer, map_) in enumerate(clean):
                own, other = seen(twin, row)
                pair = round_to_grid(torch.stack([answer, own])[None])[0]
                moved[0, row, draw, level] = (pair[0] - pair[1]).abs()
                moved[1, row, draw, level] = (other - map_).square().sum().sqrt()
    each = [
        [stats.spearmanr(*moved[:, row, draw].numpy()).statistic for draw in range(draws)]
        for row in range(len(widths))
    ]
    return torch.tensor(each, dtype=torch.float64).mean(1), moved[0], moved[1]
