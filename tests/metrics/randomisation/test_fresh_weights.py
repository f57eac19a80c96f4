"""Layers drawn in other threads get what their own initialisation would have given them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from veridical.core.key import Key
from veridical.models import randomised_layers as weights

KEY = Key(3) / "fresh"


def by_reset(module: nn.Module, key: Key) -> dict[str, torch.Tensor]:
    """What `reset_parameters` draws from the global generator."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(key.state & (2**63 - 1))
        module.reset_parameters()
    return {name: value.detach() for name, value in module.named_parameters()}


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Linear(7, 5),
        lambda: nn.Linear(7, 5, bias=False),
        lambda: nn.Conv2d(6, 8, 3, groups=2),
        lambda: nn.Conv1d(3, 4, 5, bias=False),
        lambda: nn.Conv3d(2, 3, 2),
    ],
)
def test_known_layers_draw_what_they_would_draw_themselves(make):
    module = make()
    fresh = weights._initialised(module, KEY)
    for name, value in by_reset(make(), KEY).items():
        assert torch.equal(fresh[name], value)
    assert not torch.equal(weights._initialised(module, KEY / 1)["weight"], fresh["weight"])


def test_threads_change_no_bit_and_leave_the_global_generator_alone():
    model = nn.Sequential(nn.Linear(300, 300), nn.BatchNorm1d(300), nn.Linear(300, 300), nn.Linear(300, 2))
    names = weights.layers(model)
    before = torch.get_rng_state()
    begun = weights.drawing(model, names, KEY)
    found = begun()
    assert torch.equal(torch.get_rng_state(), before)
    assert list(found) == names
    for name in ("0", "2", "3"):
        want = by_reset(type(model.get_submodule(name))(300, len(found[name][f"{name}.bias"])), KEY / name)
        assert torch.equal(found[name][f"{name}.weight"], want["weight"])
    assert torch.equal(found["1"]["1.weight"], torch.ones(300))
