"""Layers with fresh weights: each layer's own initialisation, drawn from a key."""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from veridical.core.key import Key, parameter_noise
from veridical.errors import InputError, unknown_name
from veridical.models.weights import layers, pool


def randomised(model: nn.Module, names: Sequence[str], key: Key) -> dict[str, Tensor]:
    """Fresh weights for the named layers, by each layer's own initialisation, from a keyed generator.

    A layer without `reset_parameters`, or whose weight is computed from others (weight and spectral norm),
    gets normal weights with the spread of its present ones. Tied weights go by the first of their names.
    """
    return {name: value for layer in drawing(model, names, key)().values() for name, value in layer.items()}


def drawing(model: nn.Module, names: Sequence[str], key: Key) -> Callable[[], dict[str, dict[str, Tensor]]]:
    """Begin to draw what `randomised` gives; the call that comes back waits for it: weights by layer, name.

    Large layers are drawn in other threads, so that a GPU need not wait while it has something else to do.
    """
    modules = dict(model.named_modules())
    for name in names:
        if name not in modules:
            raise unknown_name("layer", name, layers(model))
    first_names = {id(p): name for name, p in model.named_parameters()}
    chosen = {name: modules[name] for name in names}
    begun = {
        name: pool().submit(_initialised, module, key / name)
        for name, module in chosen.items()
        if type(module) in _INITIALISED and sum(p.numel() for p in module.parameters(recurse=False)) >= 2**16
    }

    def collect() -> dict[str, dict[str, Tensor]]:
        out: dict[str, dict[str, Tensor]] = {}
        for name, module in chosen.items():
            fresh = begun[name].result() if name in begun else _fresh(module, key / name)
            out[name] = {
                first_names[id(value)]: fresh[leaf].to(value.device, value.dtype, non_blocking=True)
                for leaf, value in module.named_parameters(recurse=False)
                if value.is_floating_point()
            }
        return out

    return collect


_GENERATOR = threading.Lock()
"""Held while a layer draws from torch's global generator, so that two threads do not draw each other's."""
_INITIALISED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
"""Layers whose own initialisation is known here: it can then use a generator that is not everybody's."""
_RESTING = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.LayerNorm, nn.GroupNorm)
"""Layers that begin with a weight of 1 and a bias of 0, which takes no draw and no copy of the layer."""


def _initialised(module: nn.Module, key: Key) -> dict[str, Tensor]:
    """What `reset_parameters` of a linear or convolutional layer draws, to the bit."""
    pinned = any(p.is_cuda for p in module.parameters(recurse=False))
    own = {n: torch.empty(p.shape, pin_memory=pinned) for n, p in module.named_parameters(recurse=False)}
    generator = torch.Generator().manual_seed(key.state & (2**63 - 1))
    nn.init.kaiming_uniform_(own["weight"], a=math.sqrt(5), generator=generator)
    if "bias" in own:
        bound = own["weight"][0].numel() ** -0.5
        nn.init.uniform_(own["bias"], -bound, bound, generator=generator)
    return own


def _fresh(module: nn.Module, key: Key) -> dict[str, Tensor]:
    own = dict(module.named_parameters(recurse=False))
    reset = getattr(module, "reset_parameters", None)
    # our own hooks, such as the one that counts rows, compute no weight
    hooked = any(not hook.__module__.startswith("veridical.") for hook in module._forward_pre_hooks.values())
    if reset is None or hasattr(module, "parametrizations") or hooked:
        spread = {n: p.detach().float().std(correction=0) if p.numel() > 1 else 1.0 for n, p in own.items()}
        return {n: parameter_noise(key, n, p.shape) * spread[n] for n, p in own.items()}
    if type(module) in _INITIALISED:
        return _initialised(module, key)
    if type(module) in _RESTING:
        return {n: torch.full_like(p.detach(), float(n == "weight")) for n, p in own.items()}
    twin = copy.deepcopy(module).float().cpu()
    with _GENERATOR, torch.random.fork_rng(devices=[]):
        # initialisers draw from the global generator; it is put back as it was
        torch.default_generator.manual_seed(key.state & (2**63 - 1))
        twin.reset_parameters()  # type: ignore[operator]
    return {n: p.detach() for n, p in twin.named_parameters(recurse=False)}


def cascade(model: nn.Module, order: Literal["top_down", "bottom_up", "independent"]) -> list[list[str]]:
    """Which layers are randomised at each step of the parameter randomisation test.

    `top_down` starts at the output and keeps what is already randomised; `independent` takes one at a time.
    """
    names = layers(model)
    if order == "independent":
        return [[name] for name in names]
    if order not in ("top_down", "bottom_up"):
        raise InputError(f"order is 'top_down', 'bottom_up' or 'independent', got {order!r}")
    walk = names[::-1] if order == "top_down" else names
    return [walk[: i + 1] for i in range(len(walk))]
