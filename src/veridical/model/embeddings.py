"""Text models seen from their embeddings: gradients and noise need inputs that are not token ids."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from veridical.model.padding import PaddingBlind, columns, mode_open


def embedding_layer(model: nn.Module) -> str | None:
    """The name of the layer that embeds words: what the model says it is, else its first nn.Embedding."""
    named = dict(model.named_modules())
    for module in named.values():
        ask = getattr(module, "get_input_embeddings", None)
        if ask is None:
            continue
        try:
            layer = ask()
        except (NotImplementedError, AttributeError):
            continue
        found = [n for n, m in named.items() if m is layer]
        if found:
            return found[0]
    return next((n for n, m in named.items() if isinstance(m, nn.Embedding)), None)


class EmbeddingView(nn.Module):
    """The child model, called with embeddings: token ids go in and the embedding layer's answer is replaced.

    Shapes, masks and position embeddings come from the ids, so a model needs no `inputs_embeds` argument.
    """

    def __init__(self, module: nn.Module, layer: str) -> None:
        super().__init__()
        self.module = module
        self.layer = layer

    def embed(self, token_ids: Tensor) -> Tensor:
        """The embeddings the current weights give to these tokens."""
        embedded: Tensor = self.module.get_submodule(self.layer)(token_ids)
        return embedded

    def forward(self, embedded: Tensor, token_ids: Tensor, *side: Any, **named: Any) -> Any:
        if isinstance(self.module, PaddingBlind) and self.module.left != "nothing" and not mode_open():
            there = slice(0, columns(token_ids, self.module.pad))
            embedded, token_ids = embedded[:, there], token_ids[:, there]
        handle = self.module.get_submodule(self.layer).register_forward_hook(lambda _m, _i, _o: embedded)
        try:
            return self.module(token_ids, *side, **named)
        finally:
            handle.remove()
