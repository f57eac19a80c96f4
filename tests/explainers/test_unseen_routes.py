"""A model may choose its way by values that no torch function sees it read: every run is traced anew."""

from __future__ import annotations

import ctypes

import pytest
import torch
from torch import Tensor, nn

import veridical as vd
from tests.reference.small_nets import draw, seeded
from veridical.explainers import as_explainer

METHODS = ["lrp", "lrp_epsilon", "deeplift", "guided_backprop", "gradcam"]


class Unseen(nn.Module):
    """Routes by one number, read from memory by ctypes: of the input, or of what the weights make of it."""

    def __init__(self, by_weights: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(2, 4, 3, padding=1), nn.Linear(4 * 25, 3)
        self.by_weights, self.threshold = by_weights, 0.0

    def forward(self, x: Tensor) -> Tensor:
        z = self.first(x)
        read = z.contiguous() if self.by_weights else x
        number = ctypes.c_double.from_address(read.data_ptr()).value
        h = torch.relu(z)
        return self.last((h if number > self.threshold else h.flip(1)).flatten(1))


@pytest.mark.parametrize("name", METHODS)
def test_a_model_that_routes_unseen_is_right_under_weight_noise(name: str) -> None:
    net, x = seeded(Unseen(by_weights=True)), draw(1, 2, 5, 5)
    net.threshold = float(net.first(x)[0, 0, 0, 0])  # which noise passes in every second draw
    task = vd.Task(net, x, targets=torch.zeros(1, dtype=torch.int64))
    for _ in range(3):
        vd.explain(name, task)
    explainer, ways = as_explainer(name), set()
    for seed in range(12):
        noise = vd.core.Key(seed)
        found = explainer.maps(task.with_noise(0.5, noise), vd.models.Context())
        fresh = vd.Task(net, x, targets=task.targets).with_noise(0.5, noise)
        torch.testing.assert_close(found, explainer.maps(fresh, vd.models.Context()), rtol=0, atol=0)
        ways.add(float(fresh.predictor.model.first(x)[0, 0, 0, 0]) > net.threshold)
    assert ways == {True, False}


@pytest.mark.parametrize("name", METHODS)
def test_chunks_that_go_another_way_are_explained_as_they_go(name: str) -> None:
    net, x = seeded(Unseen(by_weights=False)), draw(8, 2, 5, 5)
    x[::2, 0, 0, 0] = torch.tensor([1.0, 1.0, -1.0, 1.0]).double()  # the third chunk goes the other way
    task = vd.Task(net, x, plan=vd.Plan(rows=2))
    right = torch.cat([vd.explain(name, vd.Task(net, x[at : at + 2])).values for at in range(0, 8, 2)])
    for _ in range(3):
        torch.testing.assert_close(vd.explain(name, task).values, right)
