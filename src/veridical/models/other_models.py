"""Other models of the same shape: what an explanation of this model must not fit as well."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.models.predictor import Side, call
from veridical.models.randomised_layers import randomised
from veridical.models.weights import NoiseSource, Noisy, layers

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
