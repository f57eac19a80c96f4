"""What a task's model says to the task's inputs, and whatever else is computed once for a task and kept."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from veridical.errors import InputError, ShapeError
from veridical.models.output_heads import Head, Response
from veridical.models.predictor import CountedModel, Predictor, Side
from veridical.values.content_hash import content_digest
from veridical.values.input_checks import as_tensor

if TYPE_CHECKING:
    from veridical.perturb.fills import Fill
    from veridical.values.space import Space
    from veridical.values.task import Task

_MODALITIES = {
    "pixel": "image",
    "voxel": "image",
    "patch": "image",
    "superpixel": "image",
    "step": "series",
    "step_channel": "series",
    "token": "text",
    "column": "table",
    "column_group": "table",
    "concept": "concept",
    "unit": "units",
}
_BY_SHAPE = {4: "image", 3: "image", 2: "series"}


class Answers:
    """The model's outputs, predictions and explained outputs for the inputs of a task, asked once.

    What was computed is kept: for a task alone, for its subsets, or for all with the same reference rows. Two
    threads may compute the same thing at once; then both have the same value.
    """

    inputs: Tensor
    side: Side
    space: Space
    fill: Fill
    head: Head
    ids: Tensor
    """The name of each sample, for people: its row number unless given."""
    draw_ids: Tensor
    """A digest of each sample's input, by which its random draws are keyed."""
    masks: Tensor | None
    train: Tensor | None
    predictor: Predictor
    n_outputs: int
    _targets: Tensor | None
    _cache: dict[str, Any]
    _calibrations: dict[str, Any]
    _train_facts: dict[str, Any]

    def __len__(self) -> int:
        return self.inputs.shape[0]

    @property
    def model(self) -> nn.Module:
        """The caller's own model; under other weights, a copy of it with those weights."""
        predictor = self.predictor
        if predictor.weights is None and not predictor.wraps:
            source = predictor.source
            return source.module if source.shared else source.original
        return predictor.copied()

    @property
    def device(self) -> torch.device:
        return self.inputs.device

    @property
    def differentiable(self) -> bool:
        """Whether gradients of the outputs with respect to the inputs exist."""
        return self.predictor.differentiable and self.inputs.is_floating_point()

    @property
    def modality(self) -> str:
        """The kind of input: image, series, text, table, concept, or units that are switched on and off."""
        return _MODALITIES.get(self.space.kind) or _BY_SHAPE.get(self.inputs.dim() - 1, "table")

    @property
    def outputs(self) -> Tensor:
        """All outputs for the inputs (N, C); computed once, and counted to nobody: they are the task's."""
        if "outputs" in self._cache:
            self.predictor.source.check()
        return self.cached(
            "outputs", lambda: self.uncounted(lambda: self.predictor.outputs(self.inputs, self.side))
        )

    @property
    def predictions(self) -> Tensor:
        """The predicted class of each sample (the strongest label when several may hold)."""
        if self.head == "generation" or (self.head == "regression" and self.n_outputs == 1):
            return torch.zeros(len(self), dtype=torch.int64, device=self.device)
        predictions: Tensor = self.cached("predictions", lambda: self.outputs.argmax(-1))
        return predictions

    @property
    def undecided(self) -> bool:
        """Whether nobody said which of several quantities is explained; the largest would mean nothing."""
        return self._targets is None and self.head == "regression" and self.n_outputs > 1

    @property
    def targets(self) -> Tensor:
        """The output explained in each sample: given, or the prediction."""
        if self.undecided:
            raise InputError(
                f"the model answers {self.n_outputs} quantities, and one of them is explained: say which "
                "with targets=0 (or 1, ..., or one number per sample)"
            )
        return self.predictions if self._targets is None else self._targets

    def probabilities(self, outputs: Tensor) -> Tensor:
        """The outputs on the scale of probabilities; others than classes stay as they are."""
        if self.head in ("regression", "generation"):
            return outputs
        return outputs.softmax(-1) if self.head == "multiclass" else outputs.sigmoid()

    def respond(self, outputs: Tensor, response: Response = "probability") -> Tensor:
        """The numbers metrics look at: probabilities, or the outputs as they are.

        Of a generation they are one column; the other one says how many tokens are kept.
        """
        if self.head == "generation":
            return outputs[..., :1]
        return self.probabilities(outputs) if response == "probability" else outputs

    def clean_response(self, response: Response) -> Tensor:
        """The response of the explained output to the untouched inputs (N, 1)."""
        clean: Tensor = self.cached(
            f"clean {response}",
            lambda: self.respond(self.outputs, response).gather(1, self.targets[:, None]),
        )
        return clean

    def session(self, grad: bool = False) -> AbstractContextManager[CountedModel]:
        """Run the model by hand: `with task.session(grad=True) as model: model(x, ...)`. Rows count."""
        return self.predictor.session(grad)

    def uncounted(self, ask: Callable[[], Any]) -> Any:
        """Ask the model outside the meter: what a task or a check of ours wants to know is nobody's cost."""
        tally = self.predictor.meter.here
        before = tally.forward, tally.backward
        try:
            return ask()
        finally:
            tally.forward, tally.backward = before

    def chunks(self, rows_per_sample: int = 1) -> Iterator[Task]:
        """The task in pieces that fill one chunk each when every sample asks `rows_per_sample` rows."""
        size = max(1, self.predictor.rows // max(1, rows_per_sample))
        whole: Task = self  # type: ignore[assignment]
        if size >= len(self):
            return iter([whole])
        return (whole[at : at + size] for at in range(0, len(self), size))

    def cached(self, name: str, make: Callable[[], Any]) -> Any:
        """Compute something once for this task."""
        return _once(self._cache, name, make)

    def latest(self, name: str, about: Hashable, make: Callable[[], Any]) -> Any:
        """Like `cached` of what `about` decides, for large things: only the last of that name is kept."""
        known = self._cache.get(name)
        if known is None or known[0] != about:
            known = self._cache[name] = about, make()
        return known[1]

    def calibrated(self, name: str, make: Callable[[], Any]) -> Any:
        """Estimate something from the whole set once; subsets made afterwards inherit it and so agree."""
        return _once(self._calibrations, name, make)

    def calibrate_like(self, other: Answers) -> None:
        """Take over what was estimated from another task's set."""
        self._calibrations.update(other._calibrations)

    def from_train(self, name: str, make: Callable[[], Any]) -> Any:
        """Estimate something from the reference rows once; every task with the same rows shares it."""
        return _once(self._train_facts, name, make)

    def known(self, name: str) -> Any:
        """What is kept under a name, or None."""
        return self._cache.get(name)

    def keep(self, name: str, value: Any) -> None:
        """Keep a value under a name; None forgets it."""
        if value is None:
            self._cache.pop(name, None)
        else:
            self._cache[name] = value

    def values(
        self, maps: Any, source: str = "the map", space: Space | None = None, copy: bool = False
    ) -> Tensor:
        """Turn maps of any accepted shape into one value per feature (N, V), or say what would fit."""
        space = space or self.space
        plain = isinstance(maps, Tensor) and maps.layout == torch.strided and not maps.is_nested
        tensor = (maps if plain else as_tensor(maps, source)).detach().to(self.device, copy=copy)
        if tensor.is_complex():
            raise InputError(f"{source} holds complex numbers; relevance is one real number per feature")
        if not tensor.is_floating_point():
            # wide integers beyond 2^24 would tie in float32
            wide = tensor.element_size() > 2
            tensor = tensor.to(torch.float64 if wide else torch.get_default_dtype())
        if tensor.dim() == 0 or len(tensor) != len(self):
            raise ShapeError(f"{source} has shape {tuple(tensor.shape)}, the task has {len(self)} samples")
        shape = tuple(tensor.shape[1:])
        if shape == (space.n_features,) and (shape != space.input_shape or space.kind != "column_group"):
            return tensor
        if shape == space.input_shape:
            return space.pool(tensor)
        shared = tuple(space.labels.shape[1 if space.per_sample else 0 :])
        if shape in (shared, tuple(n for n in shared if n != 1)):
            # one value per element, shared over channels: lay it out and average what was shared
            full = tensor.reshape(len(self), *shared).expand(len(self), *space.input_shape)
            return space.pool(full) * (torch.Size(shared).numel() / torch.Size(space.input_shape).numel())
        features = torch.Size(shape).numel()
        hint = (
            "aggregate it with `space.pool(map)`"
            if torch.Size(space.input_shape).numel() % max(1, features) == 0 and features > space.n_features
            else f"give maps (N, {', '.join(map(str, space.input_shape))}) or (N, {space.n_features})"
        )
        raise ShapeError(
            f"explanation has {features} features of shape {shape}, the task's space has "
            f"{space.n_features} {space.kind} features over {space.input_shape}; {hint}"
        )

    def content_hash(self) -> str:
        """A digest of everything that decides what the model answers here."""
        side = self.side if isinstance(self.side, dict) else dict(enumerate(self.side))
        tensors = {
            "inputs": self.inputs,
            "targets": self.targets,
            "ids": self.ids,
            "train": self.train,
            "masks": self.masks,
            "labels": self.space.labels,
            "valid": self.space.valid,
            **{f"side/{name}": value for name, value in side.items()},
        }
        about = (self.head, self.space.kind, self.fill.to_json())
        return content_digest(self.predictor.model, tensors, about)

    def __repr__(self) -> str:
        noise = "" if self.predictor.weights is None else ", other weights"
        return (
            f"Task: {len(self)} samples of {tuple(self.inputs.shape[1:])}, {self.n_outputs} outputs "
            f"({self.head}), {self.space.n_features} {self.space.kind} features, on {self.device}{noise}"
        )

    def _repr_html_(self) -> str:
        from veridical.plots import html_summary

        facts = [
            ("model", type(self.model).__name__),
            ("fill", self.fill.name),
            ("reference rows", "none" if self.train is None else str(len(self.train))),
            ("rows per chunk", str(self.predictor.rows)),
        ]
        return html_summary(repr(self), ("fact", "value"), facts)


def _once(kept: dict[str, Any], name: str, make: Callable[[], Any]) -> Any:
    if name not in kept:
        kept[name] = make()
    return kept[name]
