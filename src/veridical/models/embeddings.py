"""Text models seen from their embeddings: gradients and noise need inputs that are not token ids."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from veridical.errors import NotApplicableError

TOKEN_IDS = "token ids"
"""The token ids among side inputs by name: no argument of a model can be called so."""


def embedding_layer(model: nn.Module) -> str | None:
    """The name of the layer that embeds words: what the model says it is, else its first embedding."""
    named = dict(model.named_modules())
    for module in named.values():
        method = getattr(module, "get_input_embeddings", None)
        if method is None:
            continue
        try:
            layer = method()
        except (NotImplementedError, AttributeError):
            continue
        found = [n for n, m in named.items() if m is layer]
        if found:
            return found[0]
    return next((n for n, m in named.items() if isinstance(m, nn.Embedding | nn.EmbeddingBag)), None)


class EmbeddingView(nn.Module):
    """The child model, called with embeddings: token ids go in and the embedding layer's output is replaced.

    Shapes, masks and position embeddings come from the ids, so a model needs no `inputs_embeds` argument.
    """

    def __init__(self, module: nn.Module, layer: str) -> None:
        super().__init__()
        self.module = module
        self.layer = layer

    def embed(self, token_ids: Tensor) -> Tensor:
        """The embeddings the current weights give to these tokens."""
        layer = self.module.get_submodule(self.layer)
        if isinstance(layer, nn.EmbeddingBag):
            return nn.functional.embedding(token_ids, layer.weight, layer.padding_idx)
        embedded: Tensor = layer(token_ids)
        return embedded

    def forward(self, embedded: Tensor, /, *side: Any, **named: Any) -> Any:
        by_name = named.pop(TOKEN_IDS, None)
        token_ids, *others = side if by_name is None else (by_name, *side)

        def replaced(layer: nn.Module, given: Any, by_name: Any, _output: Any) -> Tensor:
            if isinstance(layer, nn.EmbeddingBag):
                return _bagged(layer, embedded, token_ids, len(given) + len(by_name))
            return embedded

        layer = self.module.get_submodule(self.layer)
        handle = layer.register_forward_hook(replaced, with_kwargs=True)
        try:
            return self.module(token_ids, *others, **named)
        finally:
            handle.remove()


def _bagged(layer: nn.EmbeddingBag, embedded: Tensor, token_ids: Tensor, arguments: int) -> Tensor:
    """What a bag makes of the embeddings (N, L, D) of its rows of tokens."""
    if arguments > 1 or layer.max_norm is not None or token_ids.dim() != 2:
        raise NotApplicableError(
            "an nn.EmbeddingBag is explained at its embeddings where it takes rows of token ids alone: no "
            "offsets, no weights of samples, no max_norm"
        )
    if layer.padding_idx is None:
        there = torch.ones_like(token_ids, dtype=torch.bool)[..., None]
    else:
        there = (token_ids != layer.padding_idx)[..., None]
    if layer.mode == "max":
        return embedded.masked_fill(~there, float("-inf")).amax(1)
    total = (embedded * there).sum(1)
    return total if layer.mode == "sum" else total / there.sum(1).clamp(min=1)
