"""Randomised worlds are drawn once a task, whatever is judged in them, and large ones are not kept."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import veridical as vd
from veridical.core.key import Key
from veridical.metrics.randomisation import layerwise


def task_of() -> vd.Task:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).eval()
    return vd.Task(model, torch.rand(5, 6))


@pytest.fixture
def draws(monkeypatch):
    seen = []
    real = layerwise.drawing

    def drawing(*args):
        seen.append(args[-1])
        return real(*args)

    monkeypatch.setattr(layerwise, "drawing", drawing)
    return seen


@pytest.mark.parametrize("name", ["mprt", "efficient_mprt", "smooth_mprt"])
def test_methods_meet_the_same_worlds_which_are_drawn_once(name, draws):
    task = task_of()
    first = [vd.score(name, task, who).values for who in ("gradient", "input_x_gradient")]
    assert len(draws) == 1
    again = [vd.score(name, task_of(), who).values for who in ("gradient", "input_x_gradient")]
    for kept, fresh in zip(first, again, strict=True):
        torch.testing.assert_close(kept, fresh, rtol=0, atol=0, equal_nan=True)


def test_other_keys_and_orders_have_other_worlds(draws):
    task = task_of()
    for order, key in (("top_down", 0), ("bottom_up", 0), ("top_down", 1)):
        assert len(list(layerwise.randomised_worlds(task, order, Key(key)))) == 3
    layerwise.fully_randomised(task, Key(0))()
    assert len(draws) == 4


def test_worlds_that_are_too_large_are_drawn_again(draws, monkeypatch):
    monkeypatch.setattr(layerwise, "_WEIGHTS_KEPT", 10)
    task = task_of()
    for _ in range(2):
        vd.score("efficient_mprt", task, "gradient")
    assert len(draws) == 2


def test_the_oldest_go_when_there_is_no_more_room(monkeypatch):
    task = task_of()
    size = sum(p.numel() for p in task.model.parameters())
    monkeypatch.setattr(layerwise, "_WEIGHTS_KEPT", 2 * size)
    for key in range(5):
        layerwise.fully_randomised(task, Key(key))()
        assert len(task.cached("randomised worlds", dict)) <= 2


def test_a_normalising_layer_begins_as_its_own_reset_leaves_it():
    task = task_of()
    with torch.no_grad():
        task.model[1].weight.fill_(3.0)
        task.model[1].bias.fill_(2.0)
    fresh = layerwise.fully_randomised(task.refreshed(), Key(0))().predictor.model
    assert fresh[1].weight.tolist() == [1.0] * 8
    assert fresh[1].bias.tolist() == [0.0] * 8
