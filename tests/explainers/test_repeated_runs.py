"""A run that is repeated must answer what the model answers: whatever decided its way unseen is noticed."""

from __future__ import annotations

import ctypes

import pytest
import torch
from torch import Tensor, nn

import veridical as vd
from tests.reference.small_nets import draw, seeded
from veridical.errors import NotApplicableError


class Unseen(nn.Module):
    """Chooses its way by the first number of the batch, read from memory as no torch function sees it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(2, 4, 3, padding=1), nn.Linear(4 * 25, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x))
        number = ctypes.c_double.from_address(x.data_ptr()).value
        return self.last((h if number > 0 else h.flip(1)).flatten(1))


@pytest.mark.parametrize("name", ["lrp", "lrp_epsilon", "deeplift", "guided_backprop", "gradcam"])
def test_another_way_than_the_one_written_down_is_refused_and_then_followed(name: str) -> None:
    net, x = seeded(Unseen()), draw(8, 2, 5, 5)
    x[::2, 0, 0, 0] = torch.tensor([1.0, 1.0, -1.0, 1.0]).double()  # the third chunk goes the other way
    task = vd.Task(net, x, plan=vd.Plan(rows=2))
    with pytest.raises(NotApplicableError, match="otherwise than before"):
        vd.explain(name, task)
    right = torch.cat([vd.explain(name, vd.Task(net, x[at : at + 2])).values for at in range(0, 8, 2)])
    for _ in range(3):
        torch.testing.assert_close(vd.explain(name, task).values, right)


@pytest.mark.parametrize("name", ["lrp", "deeplift", "guided_backprop", "gradcam"])
def test_a_model_that_goes_one_way_is_let_be(name: str) -> None:
    net, x = seeded(Unseen()), draw(8, 2, 5, 5)
    x[::2, 0, 0, 0] = 1.0
    task = vd.Task(net, x, plan=vd.Plan(rows=2))
    first = vd.explain(name, task).values
    for _ in range(3):
        assert torch.equal(vd.explain(name, task).values, first)
