"""Masks of one prompt begin alike: what a causal model makes of a common beginning is computed once.

The masks are a tree: at each unit they part into those where it is on and those where it is off. The keys and
values of a beginning are kept (at most `KEPT_MIB`, for a moment twice that: when masks part, they are copied)
and serve all masks that go on from it.

Measured on a CPU with layers of SmolLM2's size, 161 tokens, one thread: a table of all subsets of six units
takes 0.45 of the time; single removals of 24 units 1.15, one path of removals 1.11, for the pieces between
two edges are short. So tables are asked this way, and lists of masks of many units are not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from veridical.models.prompted import PromptModel, read_logits

if TYPE_CHECKING:
    from veridical.models.predictor import Predictor, Side

KEPT_MIB = 512
"""Memory that keys and values of beginnings may take."""
MOST = 64
"""Masks that are asked together at most."""
NEEDED = {"past_key_values", "use_cache", "attention_mask", "position_ids", "logits_to_keep"}
"""What a model's forward has to take for beginnings to be shared."""

Ask = Callable[..., Any]


@contextmanager
def sharing_beginnings(predictor: Predictor, side: Side) -> Iterator[Predictor]:
    """The same predictor for masks of prompts: more rows at once, and on a CPU their beginnings shared.

    Rows that go without gradients need the memory of one layer at a time, so that more of them fit. Of a
    model that is no prompt's, or on a CPU keeps no keys and values, it is the very same.
    """
    prompted = isinstance(predictor.source.module, PromptModel) and not predictor.wraps
    model = predictor.model if prompted else None
    rows = 0
    if isinstance(model, PromptModel) and isinstance(side, dict):
        # a GPU wants many rows at once: a pass for each edge would wait for the host that starts its kernels
        rows = (
            _fitting(model, side["tokens"].shape[1]) if predictor.on_host else min(MOST, 4 * predictor.rows)
        )
    if not isinstance(model, PromptModel) or rows <= predictor.rows:
        yield predictor
        return
    model.shared = shared_logits if predictor.on_host else None
    try:
        yield replace(predictor, plan=replace(predictor.plan, rows=rows))
    finally:
        model.shared = None


def _fitting(model: PromptModel, tokens: int) -> int:
    """How many masks' keys and values fit, a power of two; 0 where the model does not say or keep them."""
    config = getattr(model.model, "config", None)
    layers, heads = getattr(config, "num_hidden_layers", 0), getattr(config, "num_attention_heads", 0)
    width = getattr(config, "hidden_size", 0)
    if not model.takes >= NEEDED or not (layers and heads and width):
        return 0
    kept = (getattr(config, "num_key_value_heads", None) or heads) * width // heads
    size = next(model.parameters()).element_size()
    fitting = KEPT_MIB * 2**20 // max(1, 2 * layers * kept * size * tokens)
    return min(MOST, 1 << (fitting.bit_length() - 1)) if fitting >= 8 else 0


def shared_logits(
    ask: Ask, tokens: Tensor, gates: Tensor, attended: Tensor, positions: Tensor, places: int
) -> Tensor:
    """Logits at the last `places` of each row (rows, places, vocabulary), a common beginning asked once."""
    prompts, which = torch.unique(tokens, dim=0, return_inverse=True)
    out: Tensor | None = None
    for number, prompt in enumerate(prompts):
        rows = (which == number).nonzero()[:, 0]
        found = _tree(ask, prompt, gates[rows], attended[rows], positions[rows], places)
        out = found.new_empty(len(tokens), *found.shape[1:]) if out is None else out
        out[rows] = found
    assert out is not None
    return out


def _tree(
    ask: Ask, prompt: Tensor, gates: Tensor, attended: Tensor, positions: Tensor, places: int
) -> Tensor:
    length, last = len(prompt), len(prompt) - places
    # an attended token differs from a hidden one, be it by its gate or as padding
    state = torch.cat([gates, attended.to(gates.dtype)], 1).unflatten(1, (2, length))
    parts = (state[..., 1:] != state[..., :-1]).flatten(0, 1).any(0).nonzero()[:, 0] + 1
    edges = [0, *(edge for edge in parts.tolist() if edge <= last), length]
    group = torch.zeros(len(gates), dtype=torch.int64, device=gates.device)
    kept, logits = None, None
    for begin, end in pairwise(edges):
        here = torch.cat([group[:, None].to(gates.dtype), state[..., begin:end].flatten(1)], 1)
        _, branch = torch.unique(here, dim=0, return_inverse=True)
        rows = torch.arange(len(branch), device=branch.device)
        first = rows.new_full((int(branch.max()) + 1,), len(rows)).scatter_reduce_(0, branch, rows, "amin")
        if kept is not None:
            kept.batch_select_indices(group[first])
        made = ask(
            prompt[begin:end].expand(len(first), -1),
            gates[first, begin:end],
            attention_mask=attended[first, :end].long(),
            position_ids=positions[first, begin:end],
            past_key_values=kept,
            use_cache=True,
            logits_to_keep=places if end == length else 1,
        )
        kept, logits, group = made.past_key_values, made, branch
    return read_logits(logits, places)[group]
