"""A small causal transformer and a word tokenizer, written out: what a language model needs and no more."""

from __future__ import annotations

import re

import torch
from torch import Tensor, nn


class Words:
    """A tokenizer whose tokens are words with the blank before them, and punctuation."""

    def __init__(self, *texts: str) -> None:
        pieces = sorted({piece for text in texts for piece in self._split(text)})
        self.pieces = ["<end>", "...", *(p for p in pieces if p != "...")]
        self.eos_token_id = 0
        self.pad_token_id = 1

    @staticmethod
    def _split(text: str) -> list[str]:
        return re.findall(r"\s?[^\s.?!]+|\s?[.?!]+|\s", text)

    def encode(self, text: str) -> list[int]:
        return [self.pieces.index(piece) for piece in self._split(text)]

    def decode(self, ids: list[int]) -> str:
        return "".join(self.pieces[int(i)] for i in ids)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.num_heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out_proj = nn.Linear(width, width)

    def forward(self, x: Tensor, allowed: Tensor) -> Tensor:
        rows, length, width = x.shape
        q, k, v = (
            part.reshape(rows, length, self.num_heads, -1).transpose(1, 2)
            for part in self.qkv(x).chunk(3, -1)
        )
        weights = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).masked_fill(~allowed, -1e9).softmax(-1)
        return self.out_proj((weights @ v).transpose(1, 2).reshape(rows, length, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor, allowed: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x), allowed)
        return x + self.mlp(self.norm2(x))


class SmallLM(nn.Module):
    """Learned positions, pre-norm blocks, and logits (rows, tokens, vocabulary)."""

    def __init__(
        self, vocabulary: int, width: int = 16, heads: int = 4, depth: int = 2, length: int = 64
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, position_ids: Tensor | None = None
    ) -> Tensor:
        length = input_ids.shape[1]
        if position_ids is None:
            position_ids = torch.arange(length, device=input_ids.device)[None]
        allowed = torch.ones(length, length, dtype=torch.bool, device=input_ids.device).tril()[None, None]
        if attention_mask is not None:
            allowed = allowed & attention_mask[:, None, None].bool()
        return self.read(self.embed(input_ids) + self.positions(position_ids), allowed)

    def read(self, x: Tensor, allowed: Tensor) -> Tensor:
        """Logits from embedded tokens."""
        for block in self.blocks:
            x = block(x, allowed)
        return self.head(self.norm(x))


def small_lm(
    tokenizer: Words,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    **shape: int,
) -> SmallLM:
    """A random one, the same every time."""
    drawn = torch.Generator().manual_seed(seed)
    model = SmallLM(len(tokenizer.pieces), **shape)
    with torch.no_grad():
        for value in model.parameters():
            value.copy_(torch.randn(value.shape, generator=drawn) * (0.7 if value.dim() > 1 else 0.3))
    return model.to(dtype).eval()
