"""The perturbation log of a score: what noise was put on, what was left out, and what it moved."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from veridical.core.facts import fact
from veridical.core.key import Key
from veridical.gef.map_checks import MapChecks
from veridical.models.predictor import call
from veridical.models.weights import NoiseSource
from veridical.values.scores import Scores
from veridical.values.task import Task

ROWS = 8
"""Samples on which it is checked what noise moves."""
SIZE = 0.1
"""Noise on what has no gradient, to check that it moves nothing."""
UNMOVED = 1e-5
"""Of the largest output: what sums added in another order may differ by."""
EIGHT_BITS = (torch.int8, torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2)
"""Types of buffers that hold weights: nothing else is stored as a matrix of these."""


@dataclass(frozen=True)
class PerturbationLog:
    """Which weights noise reached, and which of them move the output."""

    parameters: int
    """Numbers that the model learned, as far as torch can see."""
    perturbed: float
    """The share of them that was perturbed."""
    moving: float
    """The share of the perturbed that lies in tensors whose noise moves the output; NaN if not known."""
    left_out: dict[str, str]
    """What was not perturbed, and why."""
    still: tuple[str, ...]
    """Perturbed parameters that move no output."""

    @property
    def whole(self) -> bool:
        """Whether all that was learned was perturbed."""
        return not self.left_out

    def __str__(self) -> str:
        text = f"{self.perturbed:.1%} of {self.parameters:,} parameters perturbed"
        text += "" if self.moving != self.moving else f", {self.moving:.1%} of those move the output"
        if self.left_out:
            some = [f"{name} ({why})" for name, why in list(self.left_out.items())[:3]]
            more = f" and {len(self.left_out) - 3} more" if len(self.left_out) > 3 else ""
            text += f"; left out: {', '.join(some)}{more}"
        return text

    def to_json(self) -> dict[str, Any]:
        """The log as plain data, for the provenance of the scores."""
        return {**asdict(self), "still": list(self.still), "whole": self.whole, "text": str(self)}


@fact
def log_weight_noise(task: Task) -> PerturbationLog:
    """The log of weight noise on a task's model, counted to nobody."""
    log: PerturbationLog = task.uncounted(lambda: _made(task))
    return log


def log_of_score(task: Task, model: Tensor, checks: MapChecks, weights: bool) -> dict[str, Any]:
    """What one score carries: what noise reached, models dropped, what explaining again showed.

    `model` (N, M, Z) is how far the models moved, not finite where one is dropped.
    """
    lost = (~model.isfinite()).any(0)
    return {
        "models": lost.numel(),
        "models_dropped": int(lost.sum()),
        "float64_apart": None if math.isnan(checks.apart) else checks.apart,
        "redraws": checks.redraws,
        "repeats": checks.repeats,
        **(log_weight_noise(task).to_json() if weights else {}),
    }


def incomplete(scores: Iterable[Scores]) -> list[str]:
    """A sentence for everything that noise did not do as it should, the same one once."""
    said = []
    for own in scores:
        log = own.provenance.get("perturbation_log", {})
        if not log.get("whole", True):
            said.append(f"The weight noise behind GEF is not whole: {log['text']}.")
        if log.get("models_dropped"):
            said.append(
                f"{log['models_dropped']} of {log['models']} noisy models behind GEF gave answers "
                "that are not finite; their draws were dropped."
            )
    return list(dict.fromkeys(said))


def _made(task: Task) -> PerturbationLog:
    model = task.predictor.source.module
    perturbed = {name: p for name, p in model.named_parameters() if p.is_floating_point()}
    missing = dict(left_out(model))
    count = sum(p.numel() for p in perturbed.values())
    missed = sum(size for _, size in missing.values())
    evaluated = task if task.members is None else task.members
    unmoved = still(evaluated[torch.arange(min(ROWS, len(evaluated)), device=evaluated.device)])
    moving = 1 - sum(perturbed[name].numel() for name in unmoved or ()) / max(1, count)
    return PerturbationLog(
        count + missed,
        count / max(1, count + missed),
        float("nan") if unmoved is None else moving,
        {name: why for name, (why, _) in missing.items()},
        tuple(unmoved or ()),
    )


# --- what noise reaches ---------------------------------------------------------------


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
            for piece in rows.chunks():
                outputs = call(model, piece.inputs, piece.side)
                signs = torch.linspace(1.0, 2.0, outputs.shape[1], device=outputs.device, dtype=outputs.dtype)
                (outputs * signs).sum().backward()
    except RuntimeError:
        return None
    found = [name for name, p in own.items() if p.grad is None or not bool((p.grad * p).any())]
    if found and _moves(rows, {name: known[name] for name in found}):
        return None
    return found


def _moves(rows: Task, parameters: Mapping[str, Tensor]) -> bool:
    """Whether noise on these parameters alone moves an output."""
    noise = NoiseSource(rows.predictor.source.module)(Key(0) / "self-check")
    noisy = {n: p.detach() * (1 + SIZE * noise[n].to(p.device, p.dtype)) for n, p in parameters.items()}
    with rows.session():
        clean = rows.predictor.chunk(rows.inputs, rows.side).double()
    perturbed = rows.with_weights(noisy)
    with perturbed.session():
        moved = perturbed.predictor.chunk(rows.inputs, rows.side).double() - clean
    return float(moved.abs().amax()) > UNMOVED * float(clean.abs().amax())


def _unwrapped_name(name: str, known: Collection[str]) -> str:
    """The caller's name of a parameter of a model that views are put around."""
    while name not in known and name.startswith("module."):
        name = name.removeprefix("module.")
    return name
