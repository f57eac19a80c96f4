"""A model under other weights: noise, straight paths, randomised layers; the user's module is never touched.

`WeightView` registers the user's module as its child, so hook-based explainers find its layers, and puts
other tensors in the place of its parameters inside `forward` only.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from veridical.errors import InputError, NotApplicableError, unknown_name
from veridical.rng import Key, parameter_noise

Weights = Mapping[str, Tensor]


def parameters(model: nn.Module) -> dict[str, Tensor]:
    """Every floating-point parameter by name, tied ones once; no buffers. Of a view, those it runs with."""
    model, replaced = _unwrapped(model)
    named: dict[str, Tensor] = {**dict(model.named_parameters()), **replaced}
    found = {name: p for name, p in named.items() if p.is_floating_point()}
    if not found:
        raise NotApplicableError(
            f"{type(model).__name__} has no floating-point parameters that torch can see, so its weights "
            "cannot be perturbed; pass an nn.Module, or choose a metric that leaves the weights alone"
        )
    return found


def noisy(
    model: nn.Module, sigma: float, key: Key, layer: str | None = None, step: float = 1.0
) -> dict[str, Tensor]:
    """Multiplicative noise theta * (1 + step * (eta - 1)), eta ~ N(1, sigma^2) a parameter (GEF, MPT).

    `step` in (0, 1] walks the straight path from the user's weights to the noisy ones; `layer` limits the
    noise to one submodule. The draw depends on the key and the parameter's name only.
    """
    chosen = parameters(model)
    if layer is not None:
        chosen = {n: p for n, p in chosen.items() if n == layer or n.startswith(layer + ".")}
        if not chosen:
            raise unknown_name("layer with parameters", layer, layers(model))
    factors = _factors(chosen, step * sigma, key)
    return {name: value.detach() * factors[name] for name, value in chosen.items()}


def _factors(chosen: Weights, size: float, key: Key) -> dict[str, Tensor]:
    """1 + size * noise for every parameter, where it lives and as it is."""
    out: dict[str, Tensor] = {}
    kinds = dict.fromkeys((value.device, value.dtype) for value in chosen.values())
    for device, dtype in kinds:
        alike = {n: v for n, v in chosen.items() if (v.device, v.dtype) == (device, dtype)}
        # all of them in one piece: a GPU then fetches once, and waits for nothing
        drawn = _drawn(alike, key, pinned=device.type == "cuda")
        moved = drawn.to(device=device, dtype=dtype, non_blocking=True).mul_(size).add_(1.0)
        sizes = [value.numel() for value in alike.values()]
        parts = zip(alike.items(), moved.split(sizes), strict=True)
        out |= {name: part.view(value.shape) for (name, value), part in parts}
    return out


def _drawn(chosen: Weights, key: Key, pinned: bool) -> Tensor:
    """The noise of every parameter end to end; of large models in several threads: draws stand alone."""
    total = sum(value.numel() for value in chosen.values())
    flat = torch.empty(total, pin_memory=pinned)
    places = dict(zip(chosen, flat.split([value.numel() for value in chosen.values()]), strict=True))

    def draw(name: str) -> None:
        shape = chosen[name].shape
        parameter_noise(key, name, shape, places[name].view(shape))

    if total < 2**20:
        for name in chosen:
            draw(name)
    else:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(draw, chosen))
    return flat


def _unwrapped(model: nn.Module) -> tuple[nn.Module, Weights]:
    """The user's module and the tensors a view puts into it, so that names are always the user's."""
    return (model.module, model.tensors) if isinstance(model, WeightView) else (model, {})


def layers(model: nn.Module) -> list[str]:
    """Submodules that own parameters, in the order they were registered (input to output by custom)."""
    model, _ = _unwrapped(model)
    return [
        name
        for name, module in model.named_modules()
        if any(p.is_floating_point() for p in module.parameters(recurse=False))
    ]


def randomised(model: nn.Module, names: Sequence[str], key: Key) -> dict[str, Tensor]:
    """Fresh weights for the named layers, by each layer's own initialisation, from a keyed generator.

    A layer without `reset_parameters`, or whose weight is computed from others (weight and spectral norm),
    gets normal weights with the spread of its present ones. Tied weights go by the first of their names.
    """
    model, _ = _unwrapped(model)
    modules = dict(model.named_modules())
    first_names = {id(p): name for name, p in model.named_parameters()}
    out: dict[str, Tensor] = {}
    for name in names:
        if name not in modules:
            raise unknown_name("layer", name, layers(model))
        original = modules[name]
        fresh = _fresh(original, key / name)
        for leaf, value in original.named_parameters(recurse=False):
            if value.is_floating_point():
                out[first_names[id(value)]] = fresh[leaf].to(device=value.device, dtype=value.dtype)
    return out


def _fresh(module: nn.Module, key: Key) -> dict[str, Tensor]:
    own = dict(module.named_parameters(recurse=False))
    reset = getattr(module, "reset_parameters", None)
    if reset is None or hasattr(module, "parametrizations") or module._forward_pre_hooks:
        spread = {n: p.detach().float().std(correction=0) if p.numel() > 1 else 1.0 for n, p in own.items()}
        return {n: parameter_noise(key, n, p.shape) * spread[n] for n, p in own.items()}
    twin = copy.deepcopy(module).float().cpu()
    with torch.random.fork_rng(devices=[]):
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


class WeightView(nn.Module):
    """The child module, run with `tensors` in the place of the parameters of those names."""

    def __init__(self, module: nn.Module, tensors: Weights) -> None:
        super().__init__()
        if isinstance(module, WeightView):
            tensors = {**module.tensors, **tensors}
            module = module.module
        owners = dict(module.named_parameters())
        for name, value in tensors.items():
            if name not in owners:
                raise unknown_name("parameter", name, owners)
            if value.shape != owners[name].shape:
                raise InputError(
                    f"parameter '{name}' has shape {tuple(owners[name].shape)}, got {tuple(value.shape)}"
                )
        self.scripted = isinstance(module, torch.jit.ScriptModule)
        if self.scripted:
            # compiled code reads its own storage: the noise goes into a copy
            module = copy.deepcopy(module)
            with torch.no_grad():
                for name, value in module.named_parameters():
                    if name in tensors:
                        value.copy_(tensors[name])
        self.module: nn.Module = module
        self.tensors: dict[str, Tensor] = {
            name: value.detach().clone().requires_grad_(owners[name].requires_grad)
            for name, value in tensors.items()
        }

    def _apply(self, fn: Any, recurse: bool = True) -> WeightView:
        # the replacements are no parameters of this module, yet must move where the module moves
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.tensors = {
            name: fn(value.detach()).requires_grad_(value.requires_grad)
            for name, value in self.tensors.items()
        }
        return self

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.scripted:
            return self.module(*args, **kwargs)
        with swapped(self.module, self.tensors):
            return self.module(*args, **kwargs)


@contextmanager
def swapped(module: nn.Module, tensors: Weights) -> Iterator[None]:
    """Put tensors in the place of parameters and back, also when the body raises.

    Three cases need more than the parameter's own slot: tied weights sit in several slots; a recurrent
    layer reads a flat list made when it was built; the older weight and spectral norm leave the weight they
    computed as a plain attribute behind.
    """
    by_identity = {
        id(parameter): tensors[name] for name, parameter in module.named_parameters() if name in tensors
    }
    slots: list[tuple[dict[str, Any], str, Any]] = []
    flat: list[tuple[nn.RNNBase, list[Any], list[Any]]] = []
    left_behind: list[tuple[nn.Module, str, Tensor]] = []
    try:
        for owner in module.modules():
            hit = False
            for leaf, parameter in owner._parameters.items():
                if parameter is not None and id(parameter) in by_identity:
                    slots.append((owner._parameters, leaf, parameter))
                    owner._parameters[leaf] = by_identity[id(parameter)]  # type: ignore[assignment]
                    hit = True
            if hit and isinstance(owner, nn.RNNBase):
                flat.append((owner, owner._flat_weights, owner._flat_weight_refs))
                owner._flat_weights = [getattr(owner, leaf, None) for leaf in owner._flat_weights_names]
            if hit and owner._forward_pre_hooks:
                attributes = [(n, v) for n, v in owner.__dict__.items() if isinstance(v, Tensor)]
                left_behind += [(owner, n, v) for n, v in attributes]
        yield
    finally:
        for table, leaf, parameter in slots:
            table[leaf] = parameter
        for owner, weights, refs in flat:
            owner._flat_weights, owner._flat_weight_refs = weights, refs
        for kept, name, value in left_behind:
            kept.__dict__[name] = value
