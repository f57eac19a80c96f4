"""A model under other weights: noise, straight paths, randomised layers; the user's module is never touched.

`WeightView` registers the user's module as its child, so hook-based explainers find its layers, and puts
other tensors in the place of its parameters inside `forward` only.
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any, Literal

import torch
from torch import Tensor, nn

from veridical.errors import InputError, NotApplicableError, unknown_name
from veridical.model.parameter_swap import Slot, slots, swap
from veridical.model.parameter_swap import Weights as Weights
from veridical.model.parameter_swap import swapped as swapped
from veridical.random.keyed import Key, draw_noise, parameter_noise


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
    laid = Layout.of(model, layer)
    return laid.moved(laid.noise(key), step * sigma).tensors()


Noise = tuple[Tensor, ...]
Room = tuple[list[Tensor], list[tuple[str, Tensor]]]
"""Memory for a draw, and each parameter's part of it."""


ALIGNED = 64
"""Bytes to a multiple of which every parameter's place in a layout is rounded, as torch's allocator does."""


@dataclass(frozen=True, eq=False)
class _Run:
    """Parameters of one device and dtype, one behind the other in one tensor of `total` numbers."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    strides: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]
    places: tuple[int, ...]
    total: int
    cuts: tuple[int, ...]
    """Each size, and after it the numbers left out up to the next place."""

    @classmethod
    def of(cls, own: Mapping[str, Tensor]) -> _Run:
        """Where each parameter will lie; products of matrices are faster on aligned ones."""
        unit = ALIGNED // next(iter(own.values())).element_size()
        sizes = tuple(value.numel() for value in own.values())
        *places, total = accumulate((-(-size // unit) * unit for size in sizes), initial=0)
        shapes = tuple(value.shape for value in own.values())
        strides = tuple(torch.empty(shape, device="meta").stride() for shape in shapes)
        cuts = tuple(length for size in sizes for length in (size, -size % unit))
        return cls(tuple(own), shapes, strides, sizes, tuple(places), total, cuts)

    def parts(self, flat: Tensor) -> Iterable[tuple[str, Tensor]]:
        """Each parameter's own numbers in a tensor of all of them."""
        return zip(self.names, flat.split_with_sizes(self.cuts)[::2], strict=True)

    def laid(self, values: Iterable[Tensor]) -> Tensor:
        """The parameters in their places; nobody reads the numbers between them."""
        values = list(values)
        flat = values[0].new_zeros(self.total)
        for value, at in zip(values, self.places, strict=True):
            flat[at : at + value.numel()] = value.reshape(-1)
        return flat


@dataclass(frozen=True, eq=False)
class Layout:
    """The parameters of a model laid end to end, so that noise on all of them is one operation.

    One draw of noise serves every strength: `layout.moved(noise, size)` is the layout of the same model with
    theta * (1 + size * noise), and `.view()` the model that runs with it.
    """

    module: nn.Module
    runs: tuple[_Run, ...]
    values: tuple[Tensor, ...]
    slots: tuple[Slot, ...]
    trained: frozenset[str]

    @classmethod
    def of(cls, model: nn.Module, layer: str | None = None) -> Layout:
        """The layout of a model, or of one layer of it; of a view, that of the weights it runs with."""
        if layer is None and isinstance(model, WeightView) and model.layout is not None:
            return model.layout
        chosen = parameters(model)
        if layer is not None:
            chosen = {n: p for n, p in chosen.items() if n == layer or n.startswith(layer + ".")}
            if not chosen:
                raise unknown_name("layer with parameters", layer, layers(model))
        module, _ = _unwrapped(model)
        alike: dict[tuple[torch.device, torch.dtype], dict[str, Tensor]] = {}
        for name, value in chosen.items():
            alike.setdefault((value.device, value.dtype), {})[name] = value.detach()
        runs = tuple(_Run.of(own) for own in alike.values())
        return cls(
            module,
            runs,
            tuple(run.laid(own.values()) for run, own in zip(runs, alike.values(), strict=True)),
            slots(module, chosen),
            frozenset(name for name, value in chosen.items() if value.requires_grad),
        )

    @property
    def size(self) -> int:
        """How many numbers a draw of noise has."""
        return sum(sum(run.sizes) for run in self.runs)

    def noise(self, key: Key, room: Room | None = None) -> Noise:
        """N(0, 1) for every parameter, drawn by name on the CPU and brought to where the weights are.

        With a `room` it is drawn there, and lasts until the next draw in it.
        """
        # a small model's draw is over before a thread has begun
        return self.drawing(key, _pool() if self.size >= 2**20 else None, room)()

    def room(self) -> Room:
        """Memory for one draw; pinned where a GPU will fetch it."""
        pinned = [value.device.type == "cuda" for value in self.values]
        flats = [torch.empty(run.total, pin_memory=pin) for run, pin in zip(self.runs, pinned, strict=True)]
        parts = [run.parts(flat) for run, flat in zip(self.runs, flats, strict=True)]
        return flats, [part for own in parts for part in own]

    def drawing(self, key: Key, pool: Executor | None, room: Room | None = None) -> Callable[[], Noise]:
        """Begin to draw in the threads of `pool`; the call that comes back waits for the noise."""
        flats, parts = room or self.room()
        # the largest first, so that none is left alone at the end; draws stand alone, by name
        ahead = [] if pool is None else sorted(parts, key=lambda part: -part[1].numel())
        begun = [pool.submit(draw_noise, key, [part]) for part in ahead] if pool is not None else []

        def collect() -> Noise:
            for each in begun:
                each.result()
            if pool is None:
                draw_noise(key, parts)
            # in one piece: a GPU then fetches once, and waits for nothing
            return tuple(
                flat.to(device=value.device, dtype=value.dtype, non_blocking=True)
                for flat, value in zip(flats, self.values, strict=True)
            )

        return collect

    def moved(self, noise: Noise, size: float, into: Layout | None = None) -> Layout:
        """The same model with every weight multiplied by 1 + size * noise; in the place of `into`, if any."""
        if into is not None:
            for value, drawn, out in zip(self.values, noise, into.values, strict=True):
                torch.mul(drawn, size, out=out).add_(1.0).mul_(value)
            return into
        values = zip(self.values, noise, strict=True)
        return Layout(
            self.module,
            self.runs,
            tuple((drawn * size).add_(1.0).mul_(value) for value, drawn in values),
            self.slots,
            self.trained,
        )

    def tensors(self) -> dict[str, Tensor]:
        """The weights by name."""
        out: dict[str, Tensor] = {}
        for run, value in zip(self.runs, self.values, strict=True):
            for name, shape, stride, at in zip(run.names, run.shapes, run.strides, run.places, strict=True):
                out[name] = value.as_strided(shape, stride, at)
        return out

    def view(self) -> WeightView:
        """The user's module, run with these weights."""
        return WeightView(self.module, self.tensors(), self)


@lru_cache(maxsize=1)
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="veridical noise")


if hasattr(os, "register_at_fork"):
    # a thread does not survive a fork, nor does the pool that waits for it
    os.register_at_fork(after_in_child=_pool.cache_clear)


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
    return {name: value for layer in drawing(model, names, key)().values() for name, value in layer.items()}


def drawing(model: nn.Module, names: Sequence[str], key: Key) -> Callable[[], dict[str, dict[str, Tensor]]]:
    """Begin to draw what `randomised` gives; the call that comes back waits for it: weights by layer, name.

    Large layers are drawn in other threads, so that a GPU need not wait while it has something else to do.
    """
    model, _ = _unwrapped(model)
    modules = dict(model.named_modules())
    for name in names:
        if name not in modules:
            raise unknown_name("layer", name, layers(model))
    first_names = {id(p): name for name, p in model.named_parameters()}
    chosen = {name: modules[name] for name in names}
    begun = {
        name: _pool().submit(_initialised, module, key / name)
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
    if reset is None or hasattr(module, "parametrizations") or module._forward_pre_hooks:
        spread = {n: p.detach().float().std(correction=0) if p.numel() > 1 else 1.0 for n, p in own.items()}
        return {n: parameter_noise(key, n, p.shape) * spread[n] for n, p in own.items()}
    if type(module) in _INITIALISED:
        return _initialised(module, key)
    if type(module) in _RESTING:
        return {n: torch.full_like(p.detach(), float(n == "weight")) for n, p in own.items()}
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
    """The child module, run with `tensors` in the place of the parameters of those names.

    The tensors are copied, unless they come with the layout they were made by: those are nobody else's. With
    `copied=False` it is for the caller to leave them alone.
    """

    def __init__(
        self, module: nn.Module, tensors: Weights, layout: Layout | None = None, copied: bool = True
    ) -> None:
        super().__init__()
        if isinstance(module, WeightView):
            tensors = {**module.tensors, **tensors}
            module = module.module
        self.module: nn.Module = module
        self.tensors: dict[str, Tensor]
        self.scripted: bool
        self.layout: Layout | None
        self.places: tuple[Slot, ...] | None
        # torch looks for parameters among attributes, and takes longer for that than all the rest here
        put = self.__dict__
        put.update(scripted=isinstance(module, torch.jit.ScriptModule), layout=layout, places=None)
        put["training"] = module.training
        if layout is not None and not self.scripted:
            put["tensors"] = dict(tensors)
            for name in layout.trained:
                tensors[name].requires_grad_()
            return
        owners = dict(module.named_parameters())
        for name, value in tensors.items():
            if name not in owners:
                raise unknown_name("parameter", name, owners)
            if value.shape != owners[name].shape:
                raise InputError(
                    f"parameter '{name}' has shape {tuple(owners[name].shape)}, got {tuple(value.shape)}"
                )
        if self.scripted:
            # compiled code reads its own storage: the noise goes into a copy
            module = copy.deepcopy(module)
            with torch.no_grad():
                for name, value in module.named_parameters():
                    if name in tensors:
                        value.copy_(tensors[name])
        self.module = module
        self.tensors = {
            name: (value.detach().clone() if copied else value.detach()).requires_grad_(
                owners[name].requires_grad
            )
            for name, value in tensors.items()
        }

    def _apply(self, fn: Any, recurse: bool = True) -> WeightView:
        # the replacements are no parameters of this module, yet must move where the module moves
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.tensors = {
            name: fn(value.detach()).requires_grad_(value.requires_grad)
            for name, value in self.tensors.items()
        }
        self.layout = None
        return self

    def __getstate__(self) -> dict[str, Any]:
        # parts of one long tensor would each be written with the whole of it
        own = {name: value.detach().clone() for name, value in self.tensors.items()}
        kept = {name: own[name].requires_grad_(value.requires_grad) for name, value in self.tensors.items()}
        return {**self.__dict__, "layout": None, "places": None, "tensors": kept}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.scripted:
            return self.module(*args, **kwargs)
        places = self.places
        if places is None:
            places = slots(self.module, self.tensors) if self.layout is None else self.layout.slots
            self.__dict__["places"] = places
        back = swap(places, self.tensors)
        try:
            return self.module(*args, **kwargs)
        finally:
            back()
