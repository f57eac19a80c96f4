"""Small causal language models in plain torch: one to be trained, and one with heads written by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from veridical.data.networks import Attention, Block

HEADS = 4
SURE = 40.0
"""How far the score of a matching place lies above all others: so far that nothing is left for them."""
MATCH = 5.0
"""The same for the induction head, which leaves a little, so that gradients reach the head before it."""
ANSWER = 8.0
"""What the induction head adds to the logit of the token it copies."""


class CausalTransformer(nn.Module):
    """Logits (rows, length, words) of the next word at every place, from token ids.

    `attention_mask` hides tokens, and `position_ids` count the others where the caller does not.
    """

    def __init__(self, words: int, length: int, width: int = 48, heads: int = 4, blocks: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.position = nn.Embedding(length, width)
        self.blocks: nn.ModuleList = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.norm: nn.Module = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        **_: Any,
    ) -> Tensor:
        there = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        places = there.cumsum(1).sub(1).clamp(min=0) if position_ids is None else position_ids
        seen = causal(there > 0)
        x = self.embedding(input_ids) + self.position(places)
        for block in self.blocks:
            x = block(x, seen)
        logits: Tensor = self.head(self.norm(x))
        return logits


def causal(there: Tensor) -> Tensor:
    """Which places each place sees (rows, length, length): those before it, and itself, that are there."""
    return there[:, None] & torch.ones(there.shape[1], there.shape[1], dtype=torch.bool).tril().to(there)


class AttentionOnly(nn.Module):
    """A block of attention alone, added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        added: Tensor = self.attention(x, seen)
        return x + added


class InductionTransformer(CausalTransformer):
    """Two layers of attention, written by hand, that answer `... key value ... key` with `value`.

    The residual stream has a part for the token, one for the token before it, one that nobody reads, one for
    the answer, and one for the place. The previous-token head of the first layer writes which token came
    before; the induction head of the second looks for places whose previous token is the current one and
    copies what stands there into the answer. The other heads move tokens as busily, where nothing reads
    them, or add the current token to the answer, which no change of an earlier token moves. `turn` says at
    which head of each layer the two stand. A text begins with a token that is no key: it has none before it.
    """

    def __init__(self, words: int, length: int, turn: tuple[int, int] = (0, 0)) -> None:
        super().__init__(words, length, HEADS * max(2 * words, length), HEADS, 0)
        width = self.embedding.weight.shape[1]
        blocks = [AttentionOnly(width, HEADS) for _ in range(2)]
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.Identity()
        self.requires_grad_(False)
        for parameter in self.parameters():
            parameter.zero_()
        token, before, unread, answer = (slice(i * words, (i + 1) * words) for i in range(4))
        place = slice(4 * words, 4 * words + length)
        self.embedding.weight[:, token] = torch.eye(words)
        self.position.weight[:, place] = torch.eye(length)
        self.head.weight[:, answer] = torch.eye(words)
        here, alike = SURE * torch.eye(length), SURE * torch.eye(words)
        back, first = here.roll(-1, 1), here[:1].expand(length, length)
        layers: tuple[list[Head], list[Head]] = (
            [
                Head(place, place, back, before),
                Head(place, place, here, unread),
                Head(place, place, first, unread),
                Head(token, token, alike, unread),
            ],
            [
                Head(token, before, MATCH * torch.eye(words), answer, gain=ANSWER),
                Head(place, place, here, answer, gain=ANSWER / 4),
                Head(place, place, back, unread),
                Head(token, token, alike, unread),
            ],
        )
        for block, heads, shift in zip(blocks, layers, turn, strict=True):
            for number, head in enumerate(heads):
                head.write(block.attention, (number + shift) % HEADS, token)
        self.requires_grad_(True)


@dataclass(frozen=True, eq=False)
class Head:
    """What one head does: it looks from a part of the stream for another that matches, and copies tokens."""

    asks: slice
    holds: slice
    match: Tensor
    """The score (asked, held) of every pair."""
    to: slice
    gain: float = 1.0

    def write(self, attention: Attention, number: int, token: slice) -> None:
        """Write this into the weights of one head."""
        size = attention.query.weight.shape[0] // attention.heads
        own = slice(number * size, (number + 1) * size)
        held, words = self.match.shape[1], token.stop - token.start
        attention.query.weight[own][:held, self.asks] = self.match.T * size**0.5
        attention.key.weight[own][:held, self.holds] = torch.eye(held)
        attention.value.weight[own][:words, token] = torch.eye(words)
        attention.out.weight[self.to, own][:, :words] = self.gain * torch.eye(words)
