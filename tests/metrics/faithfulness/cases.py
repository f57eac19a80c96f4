"""Small tasks whose answers are known: a linear model, a crooked one, a text."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from veridical.core.space import Space
from veridical.perturb.fills import Token, Zero
from veridical.values.explanation import Explanation
from veridical.values.task import Task


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def linear_task(samples=5, features=12, classes=3, seed=0, **options):
    g = generator(seed)
    model = nn.Linear(features, classes).double()
    with torch.no_grad():
        model.weight.copy_(torch.randn(classes, features, generator=g))
        model.bias.copy_(torch.randn(classes, generator=g))
    x = torch.randn(samples, features, generator=g, dtype=torch.float64)
    return Task(model, x, fill=Zero(), **options)


class Crooked(nn.Module):
    """Interactions and saturation, so that no shortcut for linear models can pass."""

    def __init__(self, features, classes=3, seed=1):
        super().__init__()
        g = generator(seed)
        self.first = nn.Parameter(torch.randn(features, 8, generator=g, dtype=torch.float64) / features**0.5)
        self.last = nn.Parameter(torch.randn(8, classes, generator=g, dtype=torch.float64))

    def forward(self, x):
        return torch.tanh(2 * x.flatten(1) @ self.first) @ self.last


def crooked_task(samples=4, features=12, seed=0, **options):
    x = torch.randn(samples, features, generator=generator(seed), dtype=torch.float64)
    return Task(Crooked(features), x, fill=Zero(), **options)


def image_task(samples=3, side=6, seed=0, **options):
    x = torch.rand(samples, 1, side, side, generator=generator(seed), dtype=torch.float64)
    return Task(Crooked(side * side), x, fill=options.pop("fill", Zero()), **options)


class Bag(nn.Module):
    """A text model: token weights summed, so that every token has a known contribution."""

    def __init__(self, words=30, classes=3):
        super().__init__()
        self.table = nn.Embedding(words, classes).double()
        with torch.no_grad():
            self.table.weight.copy_(torch.randn(words, classes, generator=generator(5)))
            self.table.weight[0] = 0

    def forward(self, tokens):
        return self.table(tokens).sum(1)


def text_task(samples=4, length=9):
    g = generator(2)
    tokens = torch.randint(2, 30, (samples, length), generator=g)
    valid = torch.ones(samples, length, dtype=torch.bool)
    valid[:, 0] = False  # a special token
    tokens[:, 0] = 1
    for row in range(1, samples):
        valid[row, length - row :] = False
        tokens[row, length - row :] = 0
    return Task(Bag(), tokens, space=Space.tokens(length, valid), fill=Token(0))


def explained(task, values):
    values = torch.as_tensor(values, dtype=torch.float64).reshape(len(task), -1)
    return Explanation(values, task.space, task.targets, task.ids, "given")


def random_map(task, seed=3):
    return explained(task, torch.randn(len(task), task.space.n_features, generator=generator(seed)))


def weights_of(task):
    """The weight of every feature for the explained output of a linear task (N, V)."""
    return task.predictor.model.weight.detach()[task.targets]


def asker(task, sample, response):
    """The response of one sample's explained output to a plain vector."""
    target = int(task.targets[sample])
    shape = task.inputs.shape[1:]

    def ask(x):
        row = torch.as_tensor(np.asarray(x)).to(task.inputs.dtype).reshape(1, *shape)
        with torch.no_grad():
            outputs = task.predictor.model(row)
        return float((outputs.softmax(-1) if response == "probability" else outputs)[0, target])

    return ask


def vector(task, sample):
    return task.inputs[sample].reshape(-1).numpy()
