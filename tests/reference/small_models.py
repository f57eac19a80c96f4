"""Small models the core tests share."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Convolution(nn.Module):
    """Two convolutions, batch norm, and module activations, as hook-based explainers want them."""

    def __init__(self, channels: int = 1, size: int = 8, classes: int = 3) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.relu = nn.ReLU()
        self.pool = nn.AvgPool2d(2)
        self.flat = nn.Flatten()
        self.head = nn.Linear(4 * (size // 2) ** 2, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.flat(self.pool(self.relu(self.norm(self.conv(x))))))


class Tied(nn.Module):
    """One weight that sits in two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))


class Recurrent(nn.Module):
    """An LSTM over (rows, steps, channels)."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, 5, batch_first=True, bidirectional=True)
        self.head = nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


class Text(nn.Module):
    """Embedding, LSTM, mean over the tokens the attention mask keeps."""

    def __init__(self, words: int = 20, width: int = 4) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, 6, batch_first=True)
        self.head = nn.Linear(6, 3)

    def forward(self, token_ids: Tensor, mask: Tensor | None = None) -> Tensor:
        states = self.lstm(self.words(token_ids))[0]
        weight = torch.ones_like(states[..., :1]) if mask is None else mask[..., None].to(states)
        return self.head((states * weight).sum(1) / weight.sum(1))


def mlp(inputs: int = 4, outputs: int = 3, seed: int = 0) -> nn.Sequential:
    """A two-layer network with fixed weights, wide enough apart that predictions differ between rows."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(inputs, 8), nn.ReLU(), nn.Linear(8, outputs))
    with torch.no_grad():
        model[2].weight.mul_(5.0)
    return model
