"""What noise was put on: a receipt for every score, with a check against an independent copy."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from veridical.gef.worlds import Worlds
from veridical.model.predictor import call
from veridical.model.weights import NoiseSource
from veridical.random.keyed import Key
from veridical.values.scores import Scores
from veridical.values.task import Task

ROWS = 8
"""Samples that the checks look at."""
SIZE = 0.1
"""Noise at which a world is compared with a copy made by hand."""
SAME = 1e-4
"""Of the largest answer: what two runs of one model may differ by."""


@dataclass(frozen=True)
class Receipt:
    """Which weights noise reached, and whether a noisy world is what it should be."""

    parameters: int
    """Numbers that the model learned, as far as torch can see."""
    perturbed: float
    """The share of them that was perturbed."""
    moving: float
    """The share of the perturbed that lies in tensors whose noise moves the output; NaN without gradients."""
    left_out: dict[str, str]
    """What was not perturbed, and why."""
    still: tuple[str, ...]
    """Perturbed parameters that move no output."""
    self_check: float
    """How far a noisy world's answers are from those of an independent copy, as a share of the largest."""
    why_not_checked: str = ""
    """Why there is no self-check."""

    @property
    def whole(self) -> bool:
        """Whether all that was learned was perturbed, and the self-check held."""
        return not self.left_out and (self.self_check <= SAME or bool(self.why_not_checked))

    def __str__(self) -> str:
        text = f"{self.perturbed:.1%} of {self.parameters:,} parameters perturbed"
        text += "" if self.moving != self.moving else f", {self.moving:.1%} of those move the output"
        if self.left_out:
            some = [f"{name} ({why})" for name, why in list(self.left_out.items())[:3]]
            more = f" and {len(self.left_out) - 3} more" if len(self.left_out) > 3 else ""
            text += f"; left out: {', '.join(some)}{more}"
        if self.self_check > SAME:
            text += f"; a noisy world differs from an independent copy by {self.self_check:.1e}"
        return text

    def to_json(self) -> dict[str, Any]:
        """The receipt as plain data, for the provenance of the scores."""
        return {**asdict(self), "still": list(self.still), "whole": self.whole, "text": str(self)}


def receipt_of(task: Task) -> Receipt:
    """The receipt of weight noise on a task's model, made once for the task and counted to nobody."""
    found: Receipt = task.cached("gef receipt", lambda: task.uncounted(lambda: _made(task)))
    return found


def incomplete(scores: Iterable[Scores]) -> list[str]:
    """A sentence for everything that noise did not do as it should, the same one once."""
    said = []
    for own in scores:
        receipt = own.provenance.get("receipt", {})
        if not receipt.get("whole", True):
            said.append(f"The weight noise behind GEF is not whole: {receipt['text']}.")
        if receipt.get("worlds_dropped"):
            said.append(
                f"{receipt['worlds_dropped']} of {receipt['worlds']} noisy models behind GEF gave answers "
                "that are not finite; their draws were dropped."
            )
    return list(dict.fromkeys(said))


def _made(task: Task) -> Receipt:
    model = task.predictor.source.module
    perturbed = {name: p for name, p in model.named_parameters() if p.is_floating_point()}
    left_out = dict(_left_out(model))
    count = sum(p.numel() for p in perturbed.values())
    missed = sum(size for _, size in left_out.values())
    judged = task if task.members is None else task.members
    rows = judged[torch.arange(min(ROWS, len(judged)), device=judged.device)]
    still = _still(rows)
    moving = 1 - sum(perturbed[name].numel() for name in still or ()) / max(1, count)
    check, why_not = _self_check(rows, model)
    return Receipt(
        count + missed,
        count / max(1, count + missed),
        float("nan") if still is None else moving,
        {name: why for name, (why, _) in left_out.items()},
        tuple(still or ()),
        check,
        why_not,
    )


def _left_out(model: nn.Module) -> Iterator[tuple[str, tuple[str, int]]]:
    """Names of what noise does not reach, with the reason and how many numbers that is."""
    known = {id(p) for p in model.parameters()} | {id(b) for b in model.buffers()}
    for name, parameter in model.named_parameters():
        if not parameter.is_floating_point():
            kind = "complex" if parameter.is_complex() else str(parameter.dtype).removeprefix("torch.")
            yield name, (f"{kind}: noise is defined for real floating-point numbers", parameter.numel())
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
    """Parameters held by an attribute, itself or inside a plain list or dictionary."""
    if isinstance(value, nn.Parameter):
        yield "", value
    elif isinstance(value, list | tuple):
        yield from ((f"[{i}]", each) for i, each in enumerate(value) if isinstance(each, nn.Parameter))
    elif isinstance(value, dict):
        yield from ((f"[{k!r}]", each) for k, each in value.items() if isinstance(each, nn.Parameter))


def _still(rows: Task) -> list[str] | None:
    """Parameters whose noise moves no output of these rows, by their gradients; None if there are none.

    Noise multiplies, so a parameter moves the output where its value times its gradient is not 0.
    """
    if not rows.predictor.differentiable:
        return None
    try:
        with rows.session(grad=True) as model, rows.predictor.source.here().lent():
            own = {n: p for n, p in rows.predictor.unwrapped.named_parameters() if p.is_floating_point()}
            for parameter in own.values():
                parameter.requires_grad_(True)
            outputs = call(model, rows.inputs, rows.side)
            signs = torch.linspace(1.0, 2.0, outputs.shape[1], device=outputs.device, dtype=outputs.dtype)
            slopes = torch.autograd.grad((outputs * signs).sum(), list(own.values()), allow_unused=True)
    except RuntimeError:
        return None
    pairs = zip(own.items(), slopes, strict=True)
    return [name for (name, p), slope in pairs if slope is None or not bool((slope * p).any())]


def _self_check(rows: Task, model: nn.Module) -> tuple[float, str]:
    """A world's answers against those of a copy that was made and perturbed by hand."""
    key = Key(0) / "self-check"
    if rows.predictor.wraps or rows.predictor.source.copier is not None:
        return float("nan"), "the model is asked through a wrapper or copied by the caller's own function"
    try:
        twin = copy.deepcopy(model).eval()
    except Exception as error:
        return float("nan"), f"no independent copy: {type(error).__name__}"
    with torch.no_grad():
        source = NoiseSource(model)
        noise = source(key)
        for name, parameter in twin.named_parameters():
            if name in noise:
                drawn = noise[name].to(parameter.device, parameter.dtype)
                parameter.mul_((drawn * SIZE).add_(1.0))
        world = Worlds(rows, draw=source).at(SIZE, key)
        here = world.predictor.outputs(world.inputs, world.side)
        with world.session():
            there = rows.predictor.output(call(twin, rows.inputs, rows.side))
    apart = (here.double() - there.double()).abs().amax() / here.double().abs().amax().clamp(min=1e-300)
    return float(apart), ""
