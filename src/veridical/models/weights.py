"""Weights other than the caller's: replaced tensors, and multiplicative noise that is drawn by name.

They are written into a private copy of the model (`private_copy`). Noise is drawn again whenever it is
written again, so that any number of perturbed models can be held without holding their weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from veridical.core.key import Key, name_id, noise_by_name
from veridical.errors import InputError, NotApplicableError, unknown_name

Noise = Mapping[str, Tensor]
"""N(0, 1) for every perturbed parameter, by its name."""
WRAPPERS = ("_orig_mod.", "module.")
"""What compiling and data parallelism put before the names of parameters."""


class Weights(Protocol):
    """Something that can be written over the caller's weights."""

    def write(self, parameters: Mapping[str, Tensor]) -> None:
        """Change these parameters, which hold the caller's own values, in place."""


@dataclass(frozen=True, eq=False)
class Replaced:
    """Given tensors in the place of some parameters, over other weights if there are any."""

    tensors: Mapping[str, Tensor]
    under: Weights | None = None

    def write(self, parameters: Mapping[str, Tensor]) -> None:
        if self.under is not None:
            self.under.write(parameters)
        for name, value in self.tensors.items():
            parameters[name].copy_(value)


@dataclass(frozen=True, eq=False)
class Noisy:
    """Every parameter times 1 + size * noise, noise ~ N(0, 1), over other weights if there are any."""

    draw: Callable[[Key], Noise]
    key: Key
    size: float
    under: Weights | None = None

    def write(self, parameters: Mapping[str, Tensor]) -> None:
        if self.under is not None:
            self.under.write(parameters)
        noise = self.draw(self.key)
        own = [parameters[name] for name in noise]
        # all parameters in one operation each: a GPU would wait for the host that starts hundreds
        both = zip(noise.values(), own, strict=True)
        factors = torch._foreach_mul([drawn.to(p.device, p.dtype) for drawn, p in both], self.size)
        torch._foreach_add_(factors, 1.0)
        torch._foreach_mul_(own, factors)


def floating(model: nn.Module) -> dict[str, Tensor]:
    """Every floating-point parameter by name, tied ones once; no buffers."""
    found: dict[str, Tensor] = {n: p for n, p in model.named_parameters() if p.is_floating_point()}
    if not found:
        raise NotApplicableError(
            f"{type(model).__name__} has no floating-point parameters that torch can see, so its weights "
            "cannot be perturbed; pass an nn.Module, or choose a metric that leaves the weights alone"
        )
    return found


def fitting(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies of tensors that fit the parameters of these names, or what does not fit."""
    owners = dict(model.named_parameters())
    for name, value in tensors.items():
        if name not in owners:
            raise unknown_name("parameter", name, owners)
        if value.shape != owners[name].shape:
            raise InputError(
                f"parameter '{name}' has shape {tuple(owners[name].shape)}, got {tuple(value.shape)}"
            )
    return {name: value.detach().clone() for name, value in tensors.items()}


class NoiseSource:
    """Draws weight noise for one model, by key and parameter name, where its first parameter lies.

    The last two draws are kept, since one serves every strength, and a perturbed model and those around it
    are written in turn. Noise depends on keys and names alone, so it is never stale.
    """

    def __init__(self, model: nn.Module, layer: str | None = None) -> None:
        chosen = floating(model)
        if layer is not None:
            chosen = {n: p for n, p in chosen.items() if n == layer or n.startswith(layer + ".")}
            if not chosen:
                raise unknown_name("layer with parameters", layer, layers(model))
        self.shapes = {name: value.shape for name, value in chosen.items()}
        device = next(iter(chosen.values())).device
        self._keyed_by = torch.tensor([name_id(name) for name in _drawn_names(list(chosen))], device=device)
        self._latest: list[tuple[Key, Noise]] = []

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_latest": []}  # whoever gets it draws again

    def __call__(self, key: Key) -> Noise:
        """The noise of a key."""
        latest = self._latest
        noise = next((drawn for known, drawn in latest if known == key), None)
        if noise is None:
            noise = self._drawn(key)
        self._latest = [(key, noise), *(each for each in latest if each[0] != key)][:2]
        return noise

    def _drawn(self, key: Key) -> Noise:
        sizes = [shape.numel() for shape in self.shapes.values()]
        pieces = zip(self.shapes.items(), noise_by_name(key, self._keyed_by, sizes), strict=True)
        return {name: piece.view(shape) for (name, shape), piece in pieces}


def _drawn_names(names: list[str]) -> list[str]:
    """The names that key the draws: without what wrappers put before them, unless two would then agree."""
    short = []
    for name in names:
        while (prefix := next((w for w in WRAPPERS if name.startswith(w)), None)) is not None:
            name = name.removeprefix(prefix)
        short.append(name)
    return short if len(set(short)) == len(short) else names


def layers(model: nn.Module) -> list[str]:
    """Submodules that own parameters, in the order they were registered (input to output by custom)."""
    return [
        name
        for name, module in model.named_modules()
        if any(p.is_floating_point() for p in module.parameters(recurse=False))
    ]
