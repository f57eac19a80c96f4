"""A task: a model, the inputs to explain, and the outputs to explain them for."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from veridical.errors import InputError, NotApplicableError, ShapeError, VeridicalWarning
from veridical.masking.fills import Fill, as_fill, default_fill
from veridical.model.adapters import adapt
from veridical.model.cost import Meter
from veridical.model.dataframes import FrameCodec, is_frame
from veridical.model.embeddings import EmbeddingView, embedding_layer
from veridical.model.noisy_copy import Weights, WeightView, noisy
from veridical.model.output_heads import Head, Response, first_answer, two_columns
from veridical.model.predictor import (
    MIN_ROWS,
    CountedModel,
    Output,
    Plan,
    Predictor,
    Side,
    call,
    memory_budget,
    most_rows,
    plain_output,
    take_side,
)
from veridical.random.keyed import Key
from veridical.values.content_hash import content_digest
from veridical.values.input_checks import (
    as_tensor,
    behaves_otherwise,
    cast,
    checked_space,
    feature_values,
    home_of,
    ids_of,
    labels_of,
    masks_of,
    side_of,
    targets_of,
    tensor_of,
)
from veridical.values.space import Space
from veridical.values.task_cache import Keeping

_MODALITIES = {
    "pixel": "image",
    "patch": "image",
    "superpixel": "image",
    "step": "series",
    "step_channel": "series",
    "token": "text",
    "column": "table",
    "column_group": "table",
    "concept": "concept",
}
_BY_SHAPE = {3: "image", 2: "series"}


class Task(Keeping):
    """A model, its inputs, and the outputs to explain; compared by identity and never changed in place.

    `model` is any torch module, function of a batch, or scikit-learn estimator. `inputs` is the one tensor
    that is explained; `side` holds further per-sample inputs (an attention mask, say), by position or name.
    `targets` default to the predicted class. `train` holds reference rows, alone or with their labels.

    >>> model = nn.Linear(4, 3)
    >>> Task(model, torch.zeros(2, 4))
    Task: 2 samples of (4,), 3 outputs (multiclass), 4 column features, on cpu
    """

    model: nn.Module
    inputs: Tensor
    side: Side
    space: Space
    fill: Fill
    head: Head
    ids: Tensor
    masks: Tensor | None
    labels: Tensor | None
    train: Tensor | None
    train_labels: Tensor | None
    train_side: Side
    predictor: Predictor
    _plan_given: bool
    n_outputs: int
    reference: Task
    name: str
    noise_share: float = 0.0
    """How far along a noise path this world lies: 0 unperturbed, 1 at the path's end."""
    mask_answers: dict[Any, Any]
    """What the model answered to masks of few features, by fill; shared with subsets and other targets."""
    members: Task | None = None
    """Where samples stand for classes: the rows by which the model's movement on each class is judged."""

    def __init__(
        self,
        model: Any,
        inputs: Any,
        *,
        targets: Any = None,
        labels: Any = None,
        masks: Any = None,
        space: Space | None = None,
        fill: Fill | str | float | Callable[[Tensor, Tensor], Tensor] | None = None,
        train: Any = None,
        side: Any = (),
        train_side: Any = (),
        head: Head | None = None,
        output: Output | None = None,
        ids: Sequence[int | str] | Tensor | None = None,
        device: torch.device | str | None = None,
        plan: Plan | None = None,
        name: str = "task",
    ) -> None:
        put = self.__dict__
        put["name"] = name
        put.update(_cache={}, _calibrations={}, _train_facts={}, mask_answers={})
        put["_plan_given"] = plan is not None and plan.rows is not None
        train_rows, train_labels = train if isinstance(train, tuple) else (train, None)
        codec = (
            FrameCodec.of(inputs, train_rows if is_frame(train_rows) else None) if is_frame(inputs) else None
        )
        rows = tensor_of(inputs, "inputs", codec)
        place, dtype = home_of(model, device)
        rows = cast(rows, place, dtype)
        put["inputs"] = rows
        put["side"] = side_of(side, len(rows), place)
        # reference rows stand in for inputs, so they have their dtype: a mean of integers would be cut
        put["train"] = None if train_rows is None else tensor_of(train_rows, "train", codec).to(rows)
        if self.train is not None and self.train.shape[1:] != rows.shape[1:]:
            raise ShapeError(
                f"train rows have shape {tuple(self.train.shape[1:])}, inputs have {tuple(rows.shape[1:])}"
            )
        put["train_labels"], put["train_side"] = None, ()
        if self.train is not None:
            put["train_side"] = side_of(train_side, len(self.train), place)
            if train_labels is not None:
                put["train_labels"] = labels_of(train_labels, len(self.train), place)

        raw = output or plain_output
        first_side = take_side(self.side, slice(0, 1))
        module, differentiable, implied = adapt(
            model, lambda f, row: raw(call(f, row, first_side)), rows[:1], codec
        )
        if module is model and any(m.training for m in module.modules()) and behaves_otherwise(module):
            warnings.warn(
                "the model is in training mode, where dropout or batch normalisation make its answers "
                "random; it is evaluated in eval mode here and its flags are put back",
                VeridicalWarning,
                stacklevel=2,
            )
        put["head"], put["n_outputs"], plan = first_answer(
            module, raw, rows[:1], first_side, plan, head or implied
        )
        put["predictor"] = Predictor(
            module, two_columns(raw, self.head), place, plan, differentiable, Meter()
        )
        put["model"] = module

        names = None if codec is None else codec.columns
        if space is None:
            space = Space.columns(rows.shape[1], names) if codec else Space.of(rows)
        put["space"] = checked_space(space, rows).to(place)
        put["fill"] = default_fill(self.space, self.train is not None) if fill is None else as_fill(fill)
        put["ids"] = ids_of(ids, len(rows), place)
        put["labels"] = None if labels is None else labels_of(labels, len(rows), place)
        put["masks"] = None if masks is None else masks_of(masks, self.space, len(rows), place)
        if targets is not None:
            put["_targets"] = targets_of(targets, len(rows), self.n_outputs, place)
        put["reference"] = self

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a task is never changed in place; use task.with_...() to change '{name}'")

    # --- what the model says ------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.inputs.shape[0]

    @property
    def device(self) -> torch.device:
        return self.inputs.device

    @property
    def differentiable(self) -> bool:
        """Whether gradients of the outputs with respect to the inputs exist."""
        return self.predictor.differentiable and self.inputs.is_floating_point()

    @property
    def modality(self) -> str:
        """The kind of input: image, series, text, table or concept."""
        return _MODALITIES.get(self.space.kind) or _BY_SHAPE.get(self.inputs.dim() - 1, "table")

    @property
    def outputs(self) -> Tensor:
        """All outputs for the inputs (N, C); computed once, and counted to nobody: they are the task's."""
        return self.cached(
            "outputs", lambda: self.uncounted(lambda: self.predictor.outputs(self.inputs, self.side))
        )

    @property
    def predictions(self) -> Tensor:
        """The predicted class of each sample (the strongest label when several may hold)."""
        if self.head == "regression" and self.n_outputs == 1:
            return torch.zeros(len(self), dtype=torch.int64, device=self.device)
        predictions: Tensor = self.cached("predictions", lambda: self.outputs.argmax(-1))
        return predictions

    @property
    def targets(self) -> Tensor:
        """The output explained in each sample: given, or the prediction."""
        if "_targets" not in self.__dict__:
            self.__dict__["_targets"] = self.predictions
        targets: Tensor = self.__dict__["_targets"]
        return targets

    def probabilities(self, outputs: Tensor) -> Tensor:
        """The outputs on the scale of probabilities; a regression has none and keeps its outputs."""
        if self.head == "regression":
            return outputs
        return outputs.softmax(-1) if self.head == "multiclass" else outputs.sigmoid()

    def respond(self, outputs: Tensor, response: Response = "probability") -> Tensor:
        """The numbers metrics look at: probabilities, or the outputs as they are."""
        return self.probabilities(outputs) if response == "probability" else outputs

    def session(self, grad: bool = False) -> AbstractContextManager[CountedModel]:
        """Run the model by hand: `with task.session(grad=True) as model: model(x, ...)`. Rows count."""
        return self.predictor.session(grad)

    def uncounted(self, ask: Callable[[], Any]) -> Any:
        """Ask the model outside the meter: what a task or a check of ours wants to know is nobody's cost."""
        meter = self.predictor.meter
        before = meter.cost
        try:
            return ask()
        finally:
            meter.reset(before)

    # --- every change is a task ---------------------------------------------------------------------

    def _derive(self, **changes: Any) -> Task:
        task = object.__new__(Task)
        task.__dict__.update(self.__dict__)
        task.__dict__.update({"_cache": {}, "_calibrations": {}, "mask_answers": {}, **changes})
        return task

    def with_weights(self, weights: Weights) -> Task:
        """The same task under other weights; targets stay those of the unperturbed model."""
        view = WeightView(self.predictor.model, weights)
        return self._derive(model=view, predictor=self.predictor.with_model(view), _targets=self.targets)

    def with_module(self, module: nn.Module, output: Output | None = None) -> Task:
        """The same task answered by another module (a wrapped or fine-tuned one); targets stay."""
        predictor = self.predictor.with_model(module, output)
        return self._derive(model=module, predictor=predictor, _targets=self.targets)

    def with_noise(self, sigma: float, key: Key, layer: str | None = None, step: float = 1.0) -> Task:
        """The same task with every weight multiplied by N(1, sigma^2); says so when that changes nothing."""
        task = self.with_weights(noisy(self.predictor.model, sigma, key, layer, step))
        reaches = f"noise reaches {layer or 'outputs'}"
        if sigma > 0 and reaches not in self.__dict__["_cache"] and not self._differs(task):
            warnings.warn(
                "weight noise changes no output of this model: its forward pass does not use the parameters "
                "that torch lists for it",
                VeridicalWarning,
                stacklevel=2,
            )
        else:
            self.cached(reaches, lambda: True)
        return task

    def _differs(self, other: Task) -> bool:
        few = slice(0, 8)
        a, b = self.uncounted(
            lambda: [t.predictor.outputs(t.inputs[few], take_side(t.side, few)) for t in (self, other)]
        )
        return not torch.equal(a, b)

    def with_inputs(self, inputs: Tensor) -> Task:
        """The same task at other inputs of the same shape; targets stay those of the original inputs."""
        if inputs.shape != self.inputs.shape:
            raise ShapeError(f"inputs have shape {tuple(inputs.shape)}, expected {tuple(self.inputs.shape)}")
        moved = inputs.to(device=self.device, dtype=self.inputs.dtype)
        return self._derive(inputs=moved, _targets=self.targets)

    def with_targets(self, targets: Any) -> Task:
        """The same task explained for other outputs."""
        chosen = targets_of(targets, len(self), self.n_outputs, self.device)
        task = self._derive(_targets=chosen, mask_answers=self.mask_answers)
        task.__dict__["_cache"].update({k: v for k, v in self.__dict__["_cache"].items() if k == "outputs"})
        return task

    def with_space(self, space: Space, fill: Fill | None = None) -> Task:
        """The same task with other features."""
        chosen = checked_space(space, self.inputs).to(self.device)
        masks = self.masks
        if masks is not None:
            masks = masks_of(self.space.expand(masks), chosen, len(self), self.device)
        return self._derive(space=chosen, masks=masks, fill=fill or self.fill)

    def with_fill(self, fill: Fill | str | float | Callable[[Tensor, Tensor], Tensor]) -> Task:
        """The same task with another fill."""
        return self._derive(fill=as_fill(fill), mask_answers=self.mask_answers)

    def with_plan(self, plan: Plan) -> Task:
        """The same task run in other chunks or at another precision."""
        if plan.rows is None:
            plan = replace(plan, rows=self.predictor.rows)
        old = self.predictor
        new = Predictor(old.model, old.output, old.device, plan, old.differentiable, old.meter)
        return self._derive(predictor=new, _calibrations=dict(self.__dict__["_calibrations"]))

    def at_embeddings(self) -> Task:
        """The same text task where inputs are the embeddings made by the current, perhaps noisy, weights."""
        if self.inputs.is_floating_point():
            return self
        layer = embedding_layer(self.predictor.model)
        if layer is None:
            raise NotApplicableError(
                "the model has no nn.Embedding layer, so its tokens have no embeddings to explain at"
            )
        view = EmbeddingView(self.predictor.model, layer)
        with self.session():
            inputs = view.embed(self.inputs)
            train = None if self.train is None else view.embed(self.train[:1024])
        side: Side = (
            {"token_ids": self.inputs, **self.side}
            if isinstance(self.side, dict)
            else (self.inputs, *self.side)
        )
        return self._derive(
            model=view,
            predictor=self.predictor.with_model(view),
            inputs=inputs.detach(),
            train=None if train is None else train.detach(),
            side=side,
            space=self.space.at_embeddings(inputs.shape[-1]),
            fill=as_fill(0.0),
            _train_facts={},
            _targets=self.targets,
        )

    def to(self, device: torch.device | str) -> Task:
        """A task on another device; a module on another one is copied there, the caller's stays."""
        place = torch.device(device)
        if place == self.device or (place.type == self.device.type and place.index is None):
            return self
        model = copy.deepcopy(self.predictor.model).to(place)
        old = self.predictor
        moved = {
            n: None if getattr(self, n) is None else getattr(self, n).to(place)
            for n in ("inputs", "ids", "masks", "labels", "train", "train_labels", "space", "members")
        }
        plan = old.plan if self._plan_given else replace(old.plan, rows=self._rows_on(place, old.rows))
        predictor = Predictor(model, old.output, place, plan, old.differentiable, old.meter)
        sides = {n: side_of(getattr(self, n), None, place) for n in ("side", "train_side")}
        task = self._derive(
            model=model,
            predictor=predictor,
            _targets=self.targets.to(place),
            _train_facts={},
            **moved,
            **sides,
        )
        task.__dict__["reference"] = task
        return task

    def _rows_on(self, place: torch.device, rows: int) -> int:
        """Rows a chunk on another kind of device: as many more as its budget is larger."""
        there, here = memory_budget(place), memory_budget(self.device)
        return max(MIN_ROWS, min(most_rows(place), rows * there // here))

    def __getitem__(self, index: Any) -> Task:
        """The task on a subset of its samples; ids, and so all draws, stay theirs."""
        if isinstance(index, int | np.integer):
            index = [int(index)]
        if not isinstance(index, slice):
            index = torch.as_tensor(index, device=self.device)
            index = index if index.numel() else index.long()
        changes: dict[str, Any] = {
            n: None if getattr(self, n) is None else getattr(self, n)[index]
            for n in ("inputs", "ids", "masks", "labels")
        }
        if not len(changes["inputs"]):
            raise InputError("a task needs at least one sample; this selection is empty")
        task = self._derive(
            **changes,
            mask_answers=self.mask_answers,
            _targets=self.targets[index],
            side=take_side(self.side, index),
            space=self.space.take(index),
        )
        task.__dict__["_calibrations"].update(self.__dict__["_calibrations"])
        if "outputs" in self.__dict__["_cache"]:
            task.__dict__["_cache"]["outputs"] = self.outputs[index]
        if self.reference is not self:
            task.__dict__["reference"] = self.reference[index]
        else:
            task.__dict__["reference"] = task
        return task

    def chunks(self, rows_per_sample: int = 1) -> Iterator[Task]:
        """The task in pieces that fill one chunk each when every sample asks `rows_per_sample` rows."""
        size = max(1, self.predictor.rows // max(1, rows_per_sample))
        if size >= len(self):
            yield self
            return
        for at in range(0, len(self), size):
            yield self[at : at + size]

    def values(self, maps: Any, source: str = "the map") -> Tensor:
        """Turn maps of any accepted shape into one value a feature (N, V), or say what would fit."""
        return feature_values(as_tensor(maps).to(self.device), self.space, len(self), source)

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
        noise = "" if not isinstance(self.predictor.model, WeightView) else ", other weights"
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
            ("rows a chunk", str(self.predictor.rows)),
        ]
        return html_summary(repr(self), ("fact", "value"), facts)
