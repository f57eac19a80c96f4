"""The models of the tabular study: an MLP trained plainly, on masked inputs, too briefly, or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

Variant = Literal["mlp", "ood-mean", "ood-zeros", "undertrained", "untrained"]
VARIANTS: tuple[Variant, ...] = ("mlp", "ood-mean", "ood-zeros", "undertrained", "untrained")


@dataclass(frozen=True, eq=False)
class Table:
    """A data set in memory, columns standardised."""

    name: str
    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor

    @property
    def classes(self) -> int:
        return int(torch.cat([self.train_labels, self.test_labels]).max()) + 1


def network(table: Table, width: int, seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(table.train.shape[1], width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, table.classes),
    )


def fitted(
    table: Table, variant: Variant, *, width: int, epochs: int, seed: int = 0, full_accuracy: float = 1.0
) -> nn.Module:
    """Train one variant; the under-trained one stops at the first epoch with 70% of the full accuracy."""
    net = network(table, width, seed)
    if variant == "untrained":
        return net.eval()
    small = variant == "undertrained"
    optimiser = torch.optim.Adam(net.parameters(), lr=3e-4 if small else 4e-3)
    steps = -(-len(table.train) // 256)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 4e-3, epochs=epochs, steps_per_epoch=steps)
    if small:
        optimiser.param_groups[0]["lr"] = 3e-4
    fill = table.train.mean(0) if variant == "ood-mean" else torch.zeros_like(table.train[0])
    for _ in range(epochs):
        for rows in torch.randperm(len(table.train)).split(256):
            x = table.train[rows]
            if variant.startswith("ood"):
                level = torch.rand(len(x), 1)
                x = torch.where(torch.rand_like(x) < level, x, fill)
            loss = nn.functional.cross_entropy(net(x), table.train_labels[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            if not small:
                schedule.step()
        if small and accuracy(net, table) >= 0.7 * full_accuracy:
            break
    return net.eval()


def accuracy(net: nn.Module, table: Table) -> float:
    with torch.no_grad():
        return float((net(table.test).argmax(-1) == table.test_labels).double().mean())


def chosen_inputs(net: nn.Module, table: Table, count: int, seed: int = 0) -> Tensor:
    """Test rows whose label has probability >= .75, in an order fixed by the seed."""
    with torch.no_grad():
        own = net(table.test).softmax(-1).gather(1, table.test_labels[:, None])[:, 0]
    order = torch.randperm(len(own), generator=torch.Generator().manual_seed(seed))
    return order[own[order] >= 0.75][:count]
