"""The one deterministic loop that trains small models: those that are shipped, and those of replications."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.core.progress import track
from veridical.models.predictor import Side, call, take_side


@dataclass(frozen=True)
class Recipe:
    """How a model is trained."""

    epochs: int
    rate: float = 1e-3
    batch: int = 64
    decay: float = 0.0
    loss: str = "cross_entropy"
    seed: int = 0
    threads: int = 1


def initialise(model: nn.Module, key: Key) -> None:
    """Draw the weights from N(0, 2 / fan-in) and zero the biases, keyed by parameter name.

    Norm layers keep their ones and zeros, embeddings get N(0, 0.1), recurrent weights N(0, 1 / fan-in).
    """
    kinds = {
        f"{name}.{part}" if name else part: module
        for name, module in model.named_modules()
        for part, _ in module.named_parameters(recurse=False)
    }
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            module = kinds[name]
            if "norm" in type(module).__name__.lower():
                continue
            if parameter.dim() < 2:
                parameter.zero_()
                continue
            draw = keyed.parameter_noise(key, name, parameter.shape)
            if isinstance(module, nn.Embedding):
                scale = 0.1
            else:
                fan_in = parameter[0].numel()
                scale = math.sqrt((1.0 if isinstance(module, nn.RNNBase) else 2.0) / fan_in)
            parameter.copy_(draw * scale)
            if isinstance(module, nn.Embedding) and module.padding_idx is not None:
                parameter[module.padding_idx] = 0.0


def fit(
    model: nn.Module, rows: Tensor, labels: Tensor, recipe: Recipe, what: str, side: Side = ()
) -> nn.Module:
    """Train the model in place from keyed initial weights and hand it back in eval mode."""
    key = Key(recipe.seed) / "training" / what
    initialise(model, key / "weights")
    chosen = [p for p in model.parameters() if p.requires_grad]
    steps = recipe.epochs * -(-len(rows) // recipe.batch)
    with _threads(recipe.threads), torch.enable_grad():
        optimiser = torch.optim.AdamW(chosen, lr=recipe.rate, weight_decay=recipe.decay)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, recipe.rate, total_steps=steps)
        model.train()
        for epoch in track(range(recipe.epochs), f"training {what}"):
            order = keyed.permutation(key / "order", torch.tensor([epoch]), 0, len(rows))[0]
            for at in range(0, len(rows), recipe.batch):
                index = order[at : at + recipe.batch]
                outputs = call(model, rows[index], take_side(side, index))
                if recipe.loss == "cross_entropy":
                    loss = F.cross_entropy(outputs, labels[index])
                else:
                    loss = F.mse_loss(outputs[:, 0], labels[index].to(outputs.dtype))
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                schedule.step()
    model.eval()
    return model.requires_grad_(True)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """A fixed number of threads, so that the same machine always trains the same bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
