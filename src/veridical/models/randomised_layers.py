"""Layers with fresh weights, and other models of the same shape: what an explanation must not fit as well."""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from veridical.core import key as keyed
from veridical.core.key import Key, parameter_noise
from veridical.errors import InputError, unknown_name
from veridical.models.predictor import Side, call
from veridical.models.weights import NoiseSource, Noisy, layers


def randomised(model: nn.Module, names: Sequence[str], key: Key) -> dict[str, Tensor]:
    """Fresh weights for the named layers, by each layer's own initialisation, from a keyed generator.

    A layer without `reset_parameters`, or whose weight is computed from others (weight and spectral norm),
    gets normal weights with the spread of its present ones. Tied weights go by the first of their names.
    """
    fresh = randomised_by_layer(model, names, key)
    return {name: value for layer in fresh.values() for name, value in layer.items()}


def randomised_by_layer(model: nn.Module, names: Sequence[str], key: Key) -> dict[str, dict[str, Tensor]]:
    """The same fresh weights by layer and name."""
    modules = dict(model.named_modules())
    for name in names:
        if name not in modules:
            raise unknown_name("layer", name, layers(model))
    first_names = {id(p): name for name, p in model.named_parameters()}
    out: dict[str, dict[str, Tensor]] = {}
    for name in names:
        fresh = _fresh(modules[name], key / name)
        out[name] = {
            first_names[id(value)]: fresh[leaf].to(value.device, value.dtype)
            for leaf, value in modules[name].named_parameters(recurse=False)
            if value.is_floating_point()
        }
    return out


_GENERATOR = threading.Lock()
"""Held while a layer draws from torch's global generator, so that two threads do not draw each other's."""


def _fresh(module: nn.Module, key: Key) -> dict[str, Tensor]:
    own = dict(module.named_parameters(recurse=False))
    reset = getattr(module, "reset_parameters", None)
    # our own hooks, such as the one that counts rows, compute no weight
    hooked = any(not hook.__module__.startswith("veridical.") for hook in module._forward_pre_hooks.values())
    if reset is None or hasattr(module, "parametrizations") or hooked:
        spread = {n: p.detach().float().std(correction=0) if p.numel() > 1 else 1.0 for n, p in own.items()}
        return {n: parameter_noise(key, n, p.shape) * spread[n] for n, p in own.items()}
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


# --- whole models -----------------------------------------------------------------------------------------

NOISE = 1.0
"""The standard deviation of the factors of a noisy copy: as likely as not a weight changes by two thirds."""


def reinitialised(made: nn.Module, key: Key) -> nn.Module:
    """Write fresh weights into this copy of a model, and give it back.

    Layers with a `reset_parameters` of their own are drawn by it; the entries of all other parameters are
    permuted, which keeps what they look like and loses what they have learnt.
    """
    modules = dict(made.named_modules())
    own = [name for name in layers(made) if hasattr(modules[name], "reset_parameters")]
    fresh = randomised(made, own, key)
    with torch.no_grad():
        for name, value in made.named_parameters():
            if not value.is_floating_point():
                continue
            value.copy_(fresh[name] if name in fresh else permuted(value, key / name))
    return made


def permuted(value: Tensor, key: Key) -> Tensor:
    """The same entries, each in the place of another."""
    order = keyed.permutation(key, torch.zeros(1, dtype=torch.int64), 0, value.numel())[0]
    return value.detach().flatten()[order.to(value.device)].view_as(value)


def noisy(made: nn.Module, key: Key, spread: float = NOISE) -> nn.Module:
    """Multiply every weight of this copy by N(1, spread), and give it back."""
    with torch.no_grad():
        Noisy(NoiseSource(made), key, spread).write(dict(made.named_parameters()))
    return made


def estimate_batch_norm(made: nn.Module, rows: Tensor, side: Side = ()) -> nn.Module:
    """Let batch normalisation take its statistics from these rows: those of other weights do not fit."""
    norms = [m for m in made.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    if not norms:
        return made
    momenta = [m.momentum for m in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain mean over the batches
        norm.train()
    try:
        with torch.no_grad():
            call(made, rows, side)
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
            norm.eval()
    return made
