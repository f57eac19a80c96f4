"""The small networks of the embedded tasks; each activation is a module of its own, so that hooks find it."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


class DigitsCNN(nn.Sequential):
    """Two convolutions and two dense layers for 8 x 8 images of one channel."""

    def __init__(self, classes: int = 10) -> None:
        layers = OrderedDict[str, nn.Module](
            conv1=nn.Conv2d(1, 16, 3, padding=1),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(16, 32, 3, padding=1),
            relu2=nn.ReLU(),
            pool=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            dense=nn.Linear(512, 32),
            relu3=nn.ReLU(),
            head=nn.Linear(32, classes),
        )
        super().__init__(layers)


def mlp(columns: int, outputs: int, hidden: int = 32) -> nn.Sequential:
    """A dense network with two hidden layers."""
    return nn.Sequential(
        nn.Linear(columns, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, outputs),
    )


class TextCNN(nn.Module):
    """Embeddings, one convolution over neighbouring words, and the strongest answer of each filter.

    Token 0 is padding: it embeds to zero and no filter may answer at it.
    """

    def __init__(self, words: int, classes: int = 2, width: int = 16, filters: int = 24) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width, padding_idx=0)
        self.conv = nn.Conv1d(width, filters, 3, padding=1)
        self.relu = nn.ReLU()
        self.head = nn.Linear(filters, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        present = (tokens != 0).unsqueeze(1)
        x = self.relu(self.conv(self.embedding(tokens).transpose(1, 2)))
        return self.head((x * present).amax(-1))


class ColourCNN(nn.Sequential):
    """Three convolutions with stride and one dense layer for 28 x 28 colour images."""

    def __init__(self, classes: int = 10) -> None:
        layers = OrderedDict[str, nn.Module](
            conv1=nn.Conv2d(3, 16, 5, stride=2, padding=2),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(16, 32, 3, stride=2, padding=1),
            relu2=nn.ReLU(),
            conv3=nn.Conv2d(32, 48, 3, stride=2, padding=1),
            relu3=nn.ReLU(),
            flatten=nn.Flatten(),
            head=nn.Linear(48 * 16, classes),
        )
        super().__init__(layers)


class PooledCNN(nn.Sequential):
    """Three convolutions, the mean over the 7 x 7 places of the last map, and one linear head.

    What concept methods take apart: a place of the map shows one region of a 28 x 28 colour image.
    """

    def __init__(self, outputs: int = 10) -> None:
        layers = OrderedDict[str, nn.Module](
            conv1=nn.Conv2d(3, 16, 5, stride=2, padding=2),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(16, 32, 3, stride=2, padding=1),
            relu2=nn.ReLU(),
            conv3=nn.Conv2d(32, 64, 3, padding=1),
            relu3=nn.ReLU(),
            pool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            head=nn.Linear(64, outputs),
        )
        super().__init__(layers)


class LeNet(nn.Sequential):
    """LeNet-5 with ReLU and max-pooling: 6-16-120-84-10, for 28 x 28 images of one channel in [0, 1]."""

    def __init__(self, classes: int = 10) -> None:
        layers = OrderedDict[str, nn.Module](
            conv1=nn.Conv2d(1, 6, 5, padding=2),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(6, 16, 5),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            dense1=nn.Linear(400, 120),
            relu3=nn.ReLU(),
            dense2=nn.Linear(120, 84),
            relu4=nn.ReLU(),
            head=nn.Linear(84, classes),
        )
        super().__init__(layers)


class SeriesCNN(nn.Module):
    """Three convolutions over time and the mean over the steps that exist, for (channels, steps) series."""

    def __init__(self, channels: int, classes: int, width: int = 32) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(channels, width, 7, padding=3)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv1d(width, width, 5, padding=2)
        self.relu2 = nn.ReLU()
        self.conv3 = nn.Conv1d(width, width, 3, padding=1)
        self.relu3 = nn.ReLU()
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        if lengths is None:
            x = self.relu2(self.conv2(self.relu1(self.conv1(x))))
            return self.head(self.relu3(self.conv3(x)).mean(-1))
        # padding is blanked before every layer, or a bias would leak out of it into the series
        there = (torch.arange(x.shape[-1], device=x.device) < lengths[:, None])[:, None]
        x = self.relu1(self.conv1(x * there)) * there
        x = self.relu2(self.conv2(x)) * there
        x = self.relu3(self.conv3(x)) * there
        return self.head(x.sum(-1) / lengths[:, None])


class SeriesLSTM(nn.Module):
    """One LSTM layer read forwards and the mean of its states over the steps that exist.

    It never looks ahead, so padding after the end of a series cannot reach the steps before.
    """

    def __init__(self, channels: int, classes: int, width: int = 32) -> None:
        super().__init__()
        self.lstm = nn.LSTM(channels, width, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        states, _ = self.lstm(x.transpose(1, 2))
        if lengths is None:
            return self.head(states.mean(1))
        there = torch.arange(states.shape[1], device=x.device) < lengths[:, None]
        return self.head((states * there[..., None]).sum(1) / lengths[:, None])


class Attention(nn.Module):
    """Multi-head self-attention; `there` says which tokens are seen, by all (N, L) or by each (N, L, L)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.softmax = nn.Softmax(-1)

    def forward(self, x: Tensor, there: Tensor) -> Tensor:
        rows, length, width = x.shape
        shape = (rows, length, self.heads, width // self.heads)
        query, key, value = (f(x).reshape(shape).transpose(1, 2) for f in (self.query, self.key, self.value))
        scores = query @ key.transpose(-1, -2) / (width // self.heads) ** 0.5
        # a large negative number, not -inf: a text of padding alone must not become 0/0
        seen = there[:, None, None] if there.dim() == 2 else there[:, None]
        scores = scores.masked_fill(~seen, -1e4)
        mixed = (self.softmax(scores) @ value).transpose(1, 2).reshape(rows, length, width)
        return self.out(mixed)


class Block(nn.Module):
    """A transformer block: attention, then a dense layer, each after a norm and added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.dense1 = nn.Linear(width, 2 * width)
        self.gelu = nn.GELU()
        self.dense2 = nn.Linear(2 * width, width)

    def forward(self, x: Tensor, there: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x), there)
        return x + self.dense2(self.gelu(self.dense1(self.norm2(x))))


class ImageTransformer(nn.Module):
    """A small vision transformer: patches of 4 x 4, a class token, three blocks, and a linear head."""

    def __init__(self, classes: int = 10, width: int = 48, blocks: int = 3, side: int = 28) -> None:
        super().__init__()
        count = (side // 4) ** 2
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.first = nn.Embedding(1, width)
        self.position = nn.Embedding(count + 1, width)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.weight.expand(len(x), 1, -1), x], 1) + self.position.weight
        there = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        for block in self.blocks:
            x = block(x, there)
        return self.head(self.norm(x)[:, 0])


class TextTransformer(nn.Module):
    """A small transformer over words; token 0 is padding. The answer comes from the mean over the words."""

    def __init__(self, words: int, length: int, classes: int = 2, width: int = 48, blocks: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width, padding_idx=0)
        self.position = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        there = tokens != 0
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.embedding(tokens) + self.position(places)
        for block in self.blocks:
            x = block(x, there)
        x = self.norm(x) * there[..., None]
        return self.head(x.sum(1) / there.sum(1, keepdim=True).clamp(min=1))


# --- causal language models -----------------------------------------------------------------------------

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
