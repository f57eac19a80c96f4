"""Explanations by what a layer holds: sparse codes and concepts, read anew in every perturbed world.

An encoder is any object with `codes(h)` or `project(h)` (a `vd.concepts` dictionary, concepts), or a plain
function of rows h (n, D). Weight noise touches the judged model only, never the encoder.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from veridical.core.allowed import Count, Within
from veridical.core.key import Key
from veridical.errors import InputError, ShapeError, unknown_name
from veridical.explainers import Explainer
from veridical.models.predictor import call
from veridical.values.space import Space
from veridical.values.task import Task

End = Literal["input", "output"]
Pool = Literal["mean", "max", "last"]


def layer_activations(task: Task, layer: str, end: End = "output", axis: int = 1) -> Tensor:
    """What goes into or comes out of a layer: (N, positions, D), in the task's chunks; rows are counted.

    `axis` says where the layer counts its units: 1 for channels of a convolution, -1 for a transformer.
    Train a sparse autoencoder on `layer_activations(...).flatten(0, 1)`.
    """
    with task.session():
        return torch.cat([read_layer(piece, layer, end, axis)[0] for piece in task.chunks()])


def read_layer(task: Task, layer: str, end: End, axis: int) -> tuple[Tensor, Tensor | None]:
    """Activations of one chunk (n, positions, D), and the weights the layer used in this world."""
    seen: list[tuple[Any, Tensor | None]] = []

    def keep(module: nn.Module, given: tuple[Any, ...], answer: Any) -> None:
        weight = getattr(module, "weight", None)
        found = given[0] if end == "input" else answer
        used = weight.detach().clone() if isinstance(weight, Tensor) else None
        seen.append((found[0] if isinstance(found, tuple | list) else found, used))

    handle = _layer(task.predictor.model, layer).register_forward_hook(keep)
    try:
        with task.session() as model:
            call(model, task.inputs, task.side)
    finally:
        handle.remove()
    if not seen:
        raise ShapeError(f"layer '{layer}' did not run")
    found, weight = seen[-1]
    if not isinstance(found, Tensor) or found.dim() < 2 or len(found) != len(task):
        shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise ShapeError(f"layer '{layer}' has {shape} for {len(task)} rows; expected one row per sample")
    found = found.detach().movedim(axis, -1)
    return found.reshape(len(found), -1, found.shape[-1]), weight


def _layer(model: nn.Module, name: str) -> nn.Module:
    """The user's layer of this name, also inside the views that put noise into a model."""
    modules = dict(model.named_modules())
    prefix = ""
    while prefix + name not in modules and prefix + "module" in modules:
        prefix += "module."
    if prefix + name not in modules:
        raise unknown_name("layer", name, [known.removeprefix(prefix) for known in modules if known])
    return modules[prefix + name]


@dataclass(frozen=True)
class LayerCodes(Explainer):
    """The codes of a layer's activations: what a sparse autoencoder says is active (GEF section 6.4, A.4.4).

    e = z(h_l(x)), one value per atom. Positions (of a convolution's map, or tokens, padding left out) are
    encoded one by one and pooled. Score it with `GEF(distance="cosine")`: codes are sparse and their scale
    says little.
    """

    encoder: Any
    """A dictionary of `vd.concepts`, its concepts, or a function of rows (n, D)."""
    layer: str
    """Name of the layer whose activations are encoded."""
    end: End = "output"
    """Which end of the layer is read: its "input" or its "output"."""
    axis: Annotated[int, Within(-64, 64)] = 1
    """Axis of the units: 1 for the channels of a convolution, -1 for a transformer."""
    pool: Pool = "mean"
    """How positions become one code: their "mean", their "max" or the "last"."""
    width: Count | None = None
    """Values per code; None asks the encoder, unless that is a plain function, which must say it."""
    name: ClassVar[str] = "layer_codes"
    summary: ClassVar[str] = "codes of a layer's activations in a sparse dictionary"
    paper: ClassVar[str] = "GEF paper, A.4.4"

    def __post_init__(self) -> None:
        if not (callable(self.encoder) or hasattr(self.encoder, "codes") or hasattr(self.encoder, "project")):
            raise InputError(
                f"a {type(self.encoder).__name__} cannot encode; give a dictionary of vd.concepts (codes), "
                "concepts (project), or a function of rows (n, D)"
            )
        if self.n_codes < 1:
            raise InputError(f"width is at least 1, got {self.width}")

    @property
    def n_codes(self) -> int:
        """Values per explanation."""
        if self.width is not None:
            return self.width
        for name, axis in (("decoder", 0), ("vectors", 1)):
            held = getattr(self.encoder, name, None)
            if isinstance(held, Tensor):
                return held.shape[axis]
        raise InputError("how many codes this encoder gives cannot be seen; say width=...")

    def to_json(self) -> dict[str, Any]:
        """The settings as plain data; the encoder is named, not stored."""
        about = {"encoder": type(self.encoder).__qualname__, "n_codes": self.n_codes}
        own = {name: getattr(self, name) for name in ("layer", "end", "axis", "pool")}
        return {"name": self.name, "version": self.version, **about, **own}

    def why_not(self, task: Task) -> str | None:
        if not task.predictor.differentiable:
            return "the model is not a torch module, so it has no layers to read"
        try:
            _layer(task.predictor.model, self.layer)
        except InputError as error:
            return str(error)
        return super().why_not(task)

    def space_of(self, task: Task) -> Space:
        return Space.concepts(self.n_codes).to(task.device)

    def attribute(self, task: Task, key: Key) -> Tensor:
        activations, _ = read_layer(task, self.layer, self.end, self.axis)
        return self.pooled(self.encode(activations, task.targets), task)

    def encode(self, activations: Tensor, targets: Tensor) -> Tensor:
        """Codes (n, positions, K) of activations (n, positions, D); of several dictionaries the target's."""
        count, positions, width = activations.shape
        rows = activations.reshape(-1, width)
        held = getattr(self.encoder, "vectors", None)
        rows = rows.to(held.device) if isinstance(held, Tensor) else rows
        ask = getattr(self.encoder, "codes", None) or getattr(self.encoder, "project", None) or self.encoder
        codes: Tensor = ask(rows).to(activations.device)
        if codes.dim() == 3:
            place = (
                targets.repeat_interleave(positions) if codes.shape[1] > 1 else targets.new_zeros(len(rows))
            )
            codes = codes[torch.arange(len(codes), device=codes.device), place]
        if codes.shape != (len(rows), self.n_codes):
            raise ShapeError(
                f"the encoder gave {tuple(codes.shape)} for {len(rows)} rows, expected ({len(rows)}, "
                f"{self.n_codes})"
            )
        return codes.reshape(count, positions, -1)

    def pooled(self, codes: Tensor, task: Task) -> Tensor:
        """One code per sample (n, K) from those of its positions (n, positions, K)."""
        valid = task.space.valid
        if valid is None or valid.shape[1] != codes.shape[1] or task.modality != "text":
            valid = torch.ones(codes.shape[:2], dtype=torch.bool, device=codes.device)
        if self.pool == "last":
            places = torch.arange(codes.shape[1], device=codes.device)
            last = torch.where(valid, places, 0).amax(-1)
            return codes[torch.arange(len(codes), device=codes.device), last]
        there = valid[..., None]
        if self.pool == "max":
            return codes.masked_fill(~there, -torch.inf).amax(1)
        return (codes * there).sum(1) / there.sum(1).clamp(min=1)
