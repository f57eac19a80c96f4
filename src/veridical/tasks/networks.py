"""The small networks of the embedded tasks; each activation is a module of its own, so that hooks find it."""

from __future__ import annotations

from torch import Tensor, nn


class DigitsCNN(nn.Module):
    """Two convolutions and two dense layers for 8 x 8 images of one channel."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.relu2 = nn.ReLU()
        self.pool = nn.MaxPool2d(2)
        self.flatten = nn.Flatten()
        self.dense = nn.Linear(512, 32)
        self.relu3 = nn.ReLU()
        self.head = nn.Linear(32, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.relu2(self.conv2(self.relu1(self.conv1(x)))))
        x = self.relu3(self.dense(self.flatten(x)))
        return self.head(x)


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


class ColourCNN(nn.Module):
    """Three convolutions with stride and one dense layer for 28 x 28 colour images."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 5, stride=2, padding=2)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.relu2 = nn.ReLU()
        self.conv3 = nn.Conv2d(32, 48, 3, stride=2, padding=1)
        self.relu3 = nn.ReLU()
        self.flatten = nn.Flatten()
        self.head = nn.Linear(48 * 16, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu2(self.conv2(self.relu1(self.conv1(x))))
        return self.head(self.flatten(self.relu3(self.conv3(x))))
