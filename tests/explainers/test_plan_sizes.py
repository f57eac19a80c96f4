"""Runs whose sizes are read from a tensor: a plan of one batch is not repeated for another."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import veridical as vd
from tests.reference.small_nets import draw, seeded
from veridical.explainers import registry

Cut = Callable[[Tensor, Tensor], Tensor]
CUTS: dict[str, Cut] = {
    "slice": lambda x, n: x[:, : n.max()],
    "number": lambda x, n: x[:, : int(n.max())],
    "narrow": lambda x, n: x.narrow(1, 0, n.max()),
    "places": lambda x, n: x.index_select(1, torch.arange(n.max())),
    "mask": lambda x, n: x[:, (torch.arange(x.shape[1])[None] < n[:, None]).any(0)],
    "range": lambda x, n: torch.stack([x[:, at] for at in range(n.max())], 1),
    "list": lambda x, n: x[:, : max(n.tolist())],
    "zeros": lambda x, n: torch.zeros(len(x), n.max(), 3, dtype=x.dtype) + x[:, : n.max()],
    "written": lambda x, n: written(x, n),
}


def written(x: Tensor, n: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    out[:, : n.max()] = x[:, : n.max()]
    return out


class Trimmed(nn.Module):
    """Cuts off what is padding in every row of a batch; a row's answer is its own."""

    def __init__(self, cut: Cut) -> None:
        super().__init__()
        self.a, self.b, self.last, self.cut = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 3), cut

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        steps = self.cut(x, lengths)
        there = (torch.arange(steps.shape[1])[None] < lengths[:, None]).to(x)
        return self.last((torch.relu(self.b(torch.relu(self.a(steps)))) * there[..., None]).sum(1))


@pytest.mark.parametrize("name", ["guided_backprop", "deconvolution", "deeplift", "lrp", "lrp_z_plus"])
@pytest.mark.parametrize("kind", CUTS)
def test_batches_of_other_lengths_are_followed_anew(kind: str, name: str) -> None:
    lengths = torch.tensor([2, 3, 1, 1, 3, 3, 5, 1, 6, 2, 4, 4])
    task = vd.Task(
        seeded(Trimmed(CUTS[kind])),
        draw(12, 6, 3),
        side=(lengths,),
        plan=vd.Plan(rows=2),
        targets=torch.zeros(12, dtype=torch.int64),
    )
    explainer = registry.make(name)
    alone = torch.cat([explainer(task[at : at + 1]).values for at in range(12)])
    for _ in range(2):
        torch.testing.assert_close(explainer(task).values, alone, rtol=1e-9, atol=1e-12)
