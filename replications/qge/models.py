"""The models of the study: trained plainly, on masked inputs, too briefly, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from replications.qge.data import Table

Variant = Literal["trained", "ood-mean", "ood-zeros", "undertrained", "untrained"]
VARIANTS: tuple[Variant, ...] = ("trained", "ood-mean", "ood-zeros", "undertrained", "untrained")


@dataclass(frozen=True)
class Recipe:
    """How the models of one set are made.

    `network` gives a fresh one for a seed. `given` is a trained one to take as it is, and to go on from when
    masked inputs are to be learned. Masks drop squares of `grain` x `grain` pixels, or single columns. Models
    that stop early (`undertrained`, and OOD ones with `stop_at`) learn at the constant `slow_rate`.
    """

    network: Callable[[int], nn.Module]
    epochs: int
    rate: float = 4e-3
    slow_rate: float = 3e-4
    batch: int = 256
    grain: int = 1
    given: Callable[[], nn.Module] | None = None


def perceptron(columns: int, classes: int, width: int, seed: int) -> nn.Sequential:
    """An MLP of three hidden layers; the paper gives no architecture."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(columns, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, classes),
    )


def fitted(
    table: Table, variant: Variant, recipe: Recipe, *, seed: int = 0, stop_at: float | None = None
) -> nn.Module:
    """Make one variant; with `stop_at` training ends after the first epoch of at least this accuracy."""
    device = table.train.device
    if variant == "trained" and recipe.given is not None and stop_at is None:
        return recipe.given().to(device).eval()
    ood = variant.startswith("ood")
    net = (recipe.given() if ood and recipe.given is not None else recipe.network(seed)).to(device)
    if variant == "untrained":
        return net.eval()
    slow = stop_at is not None
    optimiser = torch.optim.Adam(net.parameters(), lr=recipe.slow_rate if slow else recipe.rate)
    steps = -(-len(table.train) // recipe.batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, recipe.rate, epochs=recipe.epochs, steps_per_epoch=steps
    )
    if slow:
        optimiser.param_groups[0]["lr"] = recipe.slow_rate
    fill = table.train.mean(0) if variant == "ood-mean" else torch.zeros_like(table.train[0])
    for _ in range(recipe.epochs):
        net.train()
        for rows in torch.randperm(len(table.train)).split(recipe.batch):
            x = table.train[rows.to(device)]
            if ood:
                x = torch.where(kept_at_random(x, recipe.grain), x, fill)
            loss = nn.functional.cross_entropy(net(x), table.train_labels[rows.to(device)])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            if not slow:
                schedule.step()
        if stop_at is not None and accuracy(net, table) >= stop_at:
            break
    return net.eval()


def kept_at_random(x: Tensor, grain: int) -> Tensor:
    """Which features stay, a level ~ U(0, 1) a row: columns, or squares of pixels, all channels alike."""
    level = torch.rand(len(x), *[1] * (x.dim() - 1), device=x.device)
    if x.dim() == 2:
        return torch.rand_like(x) < level
    coarse = torch.rand(len(x), 1, *(side // grain for side in x.shape[2:]), device=x.device) < level
    return coarse.repeat_interleave(grain, 2).repeat_interleave(grain, 3)


def accuracy(net: nn.Module, table: Table) -> float:
    """On the test rows."""
    net.eval()
    with torch.no_grad():
        answers = torch.cat([net(rows).argmax(-1) for rows in table.test.split(2000)])
    return float((answers == table.test_labels).double().mean())


def chosen_inputs(net: nn.Module, table: Table, count: int, seed: int = 0) -> Tensor:
    """Test rows whose label has probability >= .75, in an order fixed by the seed."""
    with torch.no_grad():
        answers = torch.cat([net(rows).softmax(-1) for rows in table.test.split(2000)])
    own = answers.gather(1, table.test_labels[:, None])[:, 0].cpu()
    order = torch.randperm(len(own), generator=torch.Generator().manual_seed(seed))
    return order[own[order] >= 0.75][:count]
