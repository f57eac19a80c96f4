"""Fresh layers get what their own initialisation would have given them."""

from __future__ import annotations

import torch
from torch import nn

from veridical.core.key import Key
from veridical.models.randomised_layers import randomised_by_layer
from veridical.models.weights import layers

KEY = Key(3) / "fresh"


def test_layers_draw_what_they_would_draw_themselves_and_leave_the_global_generator_alone():
    model = nn.Sequential(nn.Linear(30, 30), nn.BatchNorm1d(30), nn.Linear(30, 30), nn.Linear(30, 2))
    names = layers(model)
    before = torch.get_rng_state()
    found = randomised_by_layer(model, names, KEY)
    assert torch.equal(torch.get_rng_state(), before)
    assert list(found) == names
    for name in ("0", "2", "3"):
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed((KEY / name).state & (2**63 - 1))
            want = nn.Linear(30, len(found[name][f"{name}.bias"]))
        assert torch.equal(found[name][f"{name}.weight"], want.weight)
        assert torch.equal(found[name][f"{name}.bias"], want.bias)
    assert torch.equal(found["1"]["1.weight"], torch.ones(30))
