"""Weight noise written out: a dictionary of noisy tensors, and a deep copy that holds them."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from veridical.core.key import Key, parameter_noise


def noisy(
    model: nn.Module, sigma: float, key: Key, layer: str | None = None, step: float = 1.0, strip: str = ""
) -> dict[str, Tensor]:
    """theta * (1 + step * sigma * N(0, 1)) for every floating-point parameter, drawn by its name."""
    return {
        name: (parameter_noise(key, name.removeprefix(strip), value.shape).to(value) * (step * sigma) + 1.0)
        * value.detach()
        for name, value in model.named_parameters()
        if value.is_floating_point() and (layer is None or name == layer or name.startswith(layer + "."))
    }


def changed_copy(model: nn.Module, tensors: dict[str, Tensor]) -> nn.Module:
    """A deep copy with these tensors in it, also of modules whose hook left a computed weight behind."""
    left = {
        id(value): value.detach().clone()
        for module in model.modules()
        for value in module.__dict__.values()
        if isinstance(value, Tensor)
    }
    twin = copy.deepcopy(model, left)
    with torch.no_grad():
        for name, value in twin.named_parameters():
            if name in tensors:
                value.copy_(tensors[name])
    return twin
