"""How much LRP asks of a device: about as many operations as a gradient, and what is kept is never stale."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import veridical as vd
from tests.reference.small_nets import draw, seeded

POOLS = {
    "plain": lambda x: F.max_pool2d(x, 2),
    "overlapping": lambda x: F.max_pool2d(x, 3, 2, 1),
    "named": lambda x: F.max_pool2d(x, kernel_size=(3, 2), stride=(1, 2), padding=(1, 0), ceil_mode=True),
    "dilated": lambda x: F.max_pool2d(x, 2, None, 0, 2),
    "layer": nn.MaxPool2d(3, 2, 1),
    "all by place": lambda x: F.max_pool2d(x, 3, 2, 1, 1, True, False),
    "mean": nn.AdaptiveAvgPool2d(1),
    "mean of each": nn.AdaptiveAvgPool2d((1, 1)),
    "means": nn.AdaptiveAvgPool2d(2),
    "one axis": lambda x: F.adaptive_avg_pool2d(x, (1, None)),
}


class Pooled(nn.Module):
    def __init__(self, pool: Callable[[Tensor], Tensor], bias: bool) -> None:
        super().__init__()
        self.first, self.pool = nn.Conv2d(2, 4, 3, padding=1, bias=bias), pool
        places = pool(torch.rand(1, 4, 7, 7)).numel()
        self.last = nn.Linear(places, 3, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.pool(torch.relu(self.first(x))).flatten(1))


@pytest.mark.parametrize("name", POOLS)
def test_a_pool_hands_back_the_same_as_a_gradient(name: str) -> None:
    for bias in (True, False):
        task = vd.Task(seeded(Pooled(POOLS[name], bias)), draw(3, 2, 7, 7), targets=[0, 1, 2])
        first = vd.explain("lrp_epsilon", task, epsilon=1e-9).values
        if not bias:  # nothing takes a share: it tends to input times gradient
            torch.testing.assert_close(
                first, vd.explain("input_x_gradient", task).values, rtol=1e-4, atol=1e-6
            )
