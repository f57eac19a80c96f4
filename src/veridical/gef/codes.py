"""Explanations by what a layer holds: sparse codes and concepts, read anew in every perturbed model.

An encoder is any object with `codes(h)` or `project(h)` (a `vd.concepts` dictionary, concepts), or a plain
function of rows h (n, D). Weight noise touches the model only, never the encoder.
`at_neuron` makes any unit of a layer the model function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from veridical.core.allowed import Count, Within
from veridical.core.settings import checked
from veridical.core.space import Space
from veridical.errors import InputError, ShapeError, unknown_name
from veridical.explainers import Explainer
from veridical.models.context import Context
from veridical.models.predictor import call, take_side
from veridical.values.task import Task

End = Literal["input", "output"]
Pool = Literal["mean", "max", "last"]


@checked
def layer_activations(task: Task, layer: str, end: End = "output", axis: int = 1) -> Tensor:
    """What goes into or comes out of a layer: (N, positions, D), in the task's chunks; rows are counted.

    `axis` says where the layer counts its units: 1 for channels of a convolution, -1 for a transformer.
    Train a sparse autoencoder on `layer_activations(...).flatten(0, 1)`.
    """
    with task.session():
        return torch.cat([read_layer(piece, layer, end, axis) for piece in task.chunks()])


def read_layer(task: Task, layer: str, end: End, axis: int) -> Tensor:
    """Activations of one chunk (n, positions, D)."""
    module = _layer(task.predictor.model, layer)
    with recorded(module, layer, len(task), end) as read, task.session() as model:
        call(model, task.inputs, task.side)
    found = read().detach().movedim(axis, -1)
    return found.reshape(len(found), -1, found.shape[-1])


@contextmanager
def recorded(module: nn.Module, layer: str, rows: int, end: End = "output") -> Iterator[Callable[[], Tensor]]:
    """Record a layer while the model runs on some rows; gives a function that returns what was seen last."""
    seen: list[Any] = []

    def keep(_module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        found = inputs[0] if end == "input" else output
        seen.append(found[0] if isinstance(found, tuple | list) else found)

    def last() -> Tensor:
        if not seen:
            raise ShapeError(f"layer '{layer}' did not run")
        found = seen[-1]
        if not isinstance(found, Tensor) or found.dim() < 2 or len(found) != rows:
            shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ShapeError(f"layer '{layer}' has {shape} for {rows} rows; expected one row per sample")
        return found

    handle = module.register_forward_hook(keep)
    try:
        yield last
    finally:
        handle.remove()


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

    def inapplicable_reason(self, task: Task) -> str | None:
        if not task.predictor.differentiable:
            return "the model is not a torch module, so it has no layers to read"
        try:
            _layer(task.predictor.model, self.layer)
        except InputError as error:
            return str(error)
        return super().inapplicable_reason(task)

    def _space_of(self, task: Task) -> Space:
        return Space.concepts(self.n_codes).to(task.device)

    def attribute(self, task: Task, context: Context) -> Tensor:
        activations = read_layer(task, self.layer, self.end, self.axis)
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


@dataclass(frozen=True)
class ConceptRelevance(LayerCodes):
    """How much each concept of the explained output matters to a sample, with concepts of `vd.concepts`.

    `layer` is the model's linear head, at whose input concepts are read; scored is alpha_ik P(h; V_i)_k
    (`LayerCodes(concepts, layer, end="input")`: P(h; V_i)_k alone). Concepts V stay those of the unperturbed
    model: fitted anew they would come in another order, and distances between them would mean nothing.
    """

    end: End = "input"
    """Which end of the layer is read; concepts live at the "input" of the head."""
    name: ClassVar[str] = "concept_relevance"
    summary: ClassVar[str] = "what each concept contributes to the explained output"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(
            isinstance(getattr(self.encoder, name, None), Tensor) for name in ("vectors", "importances")
        ):
            raise InputError("concepts have vectors and importances; fit them with a method of vd.concepts")

    def attribute(self, task: Task, context: Context) -> Tensor:
        codes = self.encode(read_layer(task, self.layer, self.end, self.axis), task.targets)
        return self.pooled(codes * self.encoder.importances.to(codes)[task.targets][:, None], task)


# --- a unit as the model function -----------------------------------------------------


class NeuronView(nn.Module):
    """The child model, answering with the activations of one of its layers, averaged over positions.

    `axis` counts the units in the layer's output; every axis but that one and the first is averaged over.
    Of a `unit` alone the mean is given, and then its activation at every position.
    """

    def __init__(self, module: nn.Module, layer: str, axis: int = 1, unit: int | None = None) -> None:
        super().__init__()
        self.module = module
        self.layer = layer
        self.axis = axis
        self.unit = unit

    def forward(self, x: Tensor, /, *side: Any, **named: Any) -> Tensor:
        with recorded(self.module.get_submodule(self.layer), self.layer, len(x)) as read:
            self.module(x, *side, **named)
        activation = read()
        maps = activation.movedim(self.axis, 1).flatten(2) if activation.dim() > 2 else activation[..., None]
        if self.unit is None:
            return maps.mean(2)
        return torch.cat([maps.mean(2)[:, [self.unit]], maps[:, self.unit]], 1)


@checked
def at_neuron(task: Task, layer: str, unit: int, axis: int = 1, whole: bool = False) -> Task:
    """The same inputs where what is explained is the mean activation of a unit of a layer.

    `axis` says where the layer's output counts its units: 1 for channels of a convolution, -1 for the
    features of a transformer block. Activations are real numbers, so the task is a regression: its noise path
    ends where the rank correlation with the unperturbed activations, the mean over the layer's units, is a
    tenth.

    Parameters
    ----------
    task : Task
        A task whose model is a torch module.
    layer : str
        Name of the layer.
    unit : int
        Number of the unit.
    axis : int
        Axis of the layer's output that counts its units.
    whole : bool
        Whether the unit's activation at every position is an output too. The mean is explained all the same;
        with `model_distance="outputs"` GEF sees how far the whole map moves, as in appendix A.1.2.

    Returns
    -------
    Task
        A regression of the activation.
    """
    _layer(task.predictor.model, layer)  # refuses what is no layer
    view = partial(NeuronView, layer=layer, axis=axis)
    units = _outputs_of(task, view)
    if not 0 <= unit < units:
        raise InputError(f"layer '{layer}' has units 0 to {units - 1}, got {unit}")
    if whole:
        view = partial(NeuronView, layer=layer, axis=axis, unit=unit)
        units, unit = _outputs_of(task, view), 0
    moved = task.changed(predictor=task.predictor.wrapped(view, output=_as_is))
    targets = torch.full((len(task),), unit, device=task.device)
    return moved.changed(alone=True, head="regression", n_outputs=units, targets=targets)


def _outputs_of(task: Task, view: Callable[[nn.Module], nn.Module]) -> int:
    """How many numbers a view of the model answers with."""
    predictor, first = task.predictor.wrapped(view, output=_as_is), slice(0, 1)
    outputs: Tensor = task.uncounted(
        lambda: predictor.outputs(task.inputs[first], take_side(task.side, first))
    )
    return outputs.shape[1]


def _as_is(answer: Any) -> Tensor:
    outputs: Tensor = answer
    return outputs
