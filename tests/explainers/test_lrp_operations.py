"""How much LRP asks of a device: about as many operations as a gradient, and what is kept is never stale."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import veridical as vd
from tests.reference.small_nets import draw, seeded
from veridical.explainers import registry


class Twice(nn.Module):
    """A convolution whose answer is normed and also read as it is, and one layer norm in pieces."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(2, 4, 3, 2, 1, bias=False), nn.BatchNorm2d(4)
        self.second, self.last = nn.Conv2d(4, 4, 3, padding=1), nn.Linear(4 * 16, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = self.first(x)
        h = z + self.second(F.relu(self.norm(z)))
        left, right = h.chunk(2, 1)
        top, _ = torch.cat([right, left], 1).flatten(2).max(-1, keepdim=True)
        return self.last(F.dropout(h, 0.5, self.training).flatten(1)) + top.squeeze(-1)[:, :3]


def twice() -> nn.Module:
    net = seeded(Twice()).eval()
    with torch.no_grad():
        net.norm.running_mean.copy_(draw(4, seed=5))
        net.norm.running_var.copy_(draw(4, seed=6).abs() + 0.5)
        net.norm.weight.copy_(draw(4, seed=7))
    return net


NAMES = ["lrp", "lrp_epsilon", "lrp_gamma", "lrp_z_plus", "lrp_alpha_beta"]


@pytest.mark.parametrize("name", NAMES)
def test_a_layer_that_is_read_twice_is_run_and_counted_once(name: str) -> None:
    task, explainer = vd.Task(twice(), draw(5, 2, 8, 8)), registry.make(name)
    first, second = (explainer(task) for _ in range(2))
    assert torch.equal(first.values, second.values)
    assert explainer._declared(task) == first.cost == second.cost


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
