"""How far weight noise reaches: what it leaves out, what it does not move, and whether a world is right."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from veridical.core.key import Key
from veridical.errors import NotApplicableError
from veridical.gef.worlds import Worlds
from veridical.models.predictor import call
from veridical.models.weights import NoiseSource
from veridical.values.task import Task

SIZE = 0.1
"""Noise at which a world is compared with a copy made by hand."""
KEY = Key(0) / "self-check"
UNMOVED = 1e-5
"""Of the largest answer: what sums added in another order may differ by."""
EIGHT_BITS = (torch.int8, torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2)
"""Types of buffers that hold weights: nothing else is stored as a matrix of these."""


def left_out(model: nn.Module) -> Iterator[tuple[str, tuple[str, int]]]:
    """Names of what noise does not reach, with the reason and how many numbers that is."""
    known = {id(p) for p in model.parameters()} | {id(b) for b in model.buffers()}
    for name, parameter in model.named_parameters():
        if not parameter.is_floating_point():
            kind = "complex" if parameter.is_complex() else str(parameter.dtype).removeprefix("torch.")
            yield name, (f"{kind}: noise is defined for real floating-point numbers", parameter.numel())
    for name, buffer in model.named_buffers():
        if buffer.dtype in EIGHT_BITS and buffer.dim() > 1:
            kind = str(buffer.dtype).removeprefix("torch.")
            yield name, (f"a buffer of {kind}, as quantised weights are kept", buffer.numel())
    for path, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if ".quantized" in type(module).__module__ and callable(weight):
            yield path, ("quantised", weight().numel())
        for attribute, value in vars(module).items():
            if attribute.startswith("_"):
                continue
            for place, tensor in _learned(value):
                if id(tensor) not in known:
                    known.add(id(tensor))
                    name = ".".join(filter(None, (path, attribute + place)))
                    yield name, ("torch does not know it: it is in no parameter of a module", tensor.numel())


def _learned(value: Any) -> Iterator[tuple[str, Tensor]]:
    """Parameters held by an attribute: itself, or those and layers inside a plain list or dictionary."""
    if isinstance(value, nn.Parameter):
        yield "", value
    held: Iterator[tuple[Any, Any]] = iter(())
    if isinstance(value, list | tuple):
        held = iter(enumerate(value))
    elif isinstance(value, dict):
        held = iter(value.items())
    for place, each in held:
        if isinstance(each, nn.Parameter):
            yield f"[{place!r}]", each
        elif isinstance(each, nn.Module):
            yield from ((f"[{place!r}].{name}", p) for name, p in each.named_parameters())


def still(rows: Task) -> list[str] | None:
    """Parameters whose noise moves no output of these rows, by their gradients; None if that is not known.

    Noise multiplies, so a parameter moves the output where its value times its gradient is not 0. Where a
    gradient is lost on its way (rounding, eight bits) noise moves what seemed still: then nothing is said.
    """
    if not rows.predictor.differentiable:
        return None
    try:
        with rows.session(grad=True), rows.predictor.exposed() as model:
            known = dict(rows.predictor.source.module.named_parameters())
            named = ((_unwrapped_name(n, known), p) for n, p in model.named_parameters())
            own = {n: p for n, p in named if n in known and p.is_floating_point()}
            for parameter in own.values():
                parameter.requires_grad_(True)
            outputs = call(model, rows.inputs, rows.side)
            signs = torch.linspace(1.0, 2.0, outputs.shape[1], device=outputs.device, dtype=outputs.dtype)
            slopes = torch.autograd.grad((outputs * signs).sum(), list(own.values()), allow_unused=True)
    except RuntimeError:
        return None
    pairs = zip(own.items(), slopes, strict=True)
    found = [name for (name, p), slope in pairs if slope is None or not bool((slope * p).any())]
    if found:
        moved, clean = (_by_hand(rows, names) for names in (found, ()))
        if moved is not None and clean is not None and _apart(moved, clean) > UNMOVED:
            return None
    return found


def _unwrapped_name(name: str, known: Collection[str]) -> str:
    """The caller's name of a parameter of a model that views are put around."""
    while name not in known and name.startswith("module."):
        name = name.removeprefix("module.")
    return name


def self_check(rows: Task) -> tuple[float, str]:
    """A world's answers against those of a copy that was perturbed by hand: their distance, or why not."""
    there = _by_hand(rows)
    if there is None:
        return math.nan, "the model is asked through a wrapper, or no independent copy could be made"
    world = Worlds(rows, draw=NoiseSource(rows.predictor.source.module)).at(SIZE, KEY)
    with torch.no_grad():
        here = world.predictor.outputs(world.inputs, world.side)
    return _apart(there, here), ""


def _apart(these: Tensor, those: Tensor) -> float:
    """The largest difference of two sets of answers, as a share of the largest answer."""
    largest = those.double().abs().amax().clamp(min=1e-300)
    return float((these.double() - those.double()).abs().amax() / largest)


def _by_hand(rows: Task, names: Collection[str] | None = None) -> Tensor | None:
    """The answers of a copy whose parameters, all or those named, were multiplied by noise here."""
    source = rows.predictor.source
    if rows.predictor.wraps or source.copier is not None or source.shared:
        return None
    try:
        twin = source.copied().eval()
    except NotApplicableError:
        return None
    noise = NoiseSource(source.module)(KEY)
    with torch.no_grad():
        for name, parameter in twin.named_parameters():
            if name in noise and (names is None or name in names):
                drawn = noise[name].to(parameter.device, parameter.dtype)
                parameter.mul_((drawn * SIZE).add_(1.0))
        with rows.session():
            return rows.predictor.output(call(twin, rows.inputs, rows.side))
