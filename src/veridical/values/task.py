"""A task: a model, the inputs to explain, and the outputs to explain them for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from veridical.core.facts import fact
from veridical.core.key import Key
from veridical.core.settings import checked
from veridical.core.space import Space
from veridical.errors import InputError, NotApplicableError, OutOfRangeError, ShapeError, visible, warn
from veridical.models.adapters import adapt, readapted
from veridical.models.dataframes import FrameCodec, as_pandas, is_frame
from veridical.models.embeddings import TOKEN_IDS, EmbeddingView, embedding_layer
from veridical.models.estimators import class_names, one_target
from veridical.models.output_heads import Head, Response, first_outputs, two_columns
from veridical.models.plan import MIN_ROWS, Plan, memory_budget, most_rows
from veridical.models.predictor import CountedModel, Output, Predictor, Side, call, plain_output, take_side
from veridical.models.private_copy import Copier, Snapshot, trains
from veridical.models.weights import NoiseSource, Noisy, Replaced, Weights, fitting
from veridical.perturb.fills import Fill, as_fill, default_fill
from veridical.values.content_hash import content_digest
from veridical.values.input_checks import (
    as_device,
    as_tensor,
    behaves_otherwise,
    cast,
    checked_space,
    collected,
    holds_several,
    home_of,
    ids_of,
    labels_of,
    look_for_bytes,
    look_for_channels_last,
    look_for_time_first,
    masks_of,
    sample_digests,
    say_patches,
    side_of,
    targets_of,
    tensor_of,
)

_KINDS = {
    "image": "pixel voxel patch superpixel",
    "series": "step step_channel",
    "text": "token",
    "table": "column column_group",
    "concept": "concept",
    "units": "unit",
}
_MODALITIES = {kind: modality for modality, kinds in _KINDS.items() for kind in kinds.split()}
_BY_SHAPE = {4: "image", 3: "image", 2: "series"}


class Task:
    """A model, its inputs, and the outputs to explain; compared by identity and never changed in place.

    `model` is any torch module, function of a batch, or scikit-learn estimator. `inputs` is the one tensor
    that is explained; `side` holds further per-sample inputs (an attention mask, say), by position or name.
    `targets` default to the predicted class. `train` holds reference rows, alone or with their labels.

    Parameters
    ----------
    model : nn.Module, callable, or estimator
        What is explained: any torch module, function of a batch, or scikit-learn estimator.
    inputs : Tensor, array, data frame, DataLoader or Dataset
        The rows that are explained; of a DataLoader or Dataset the first 1,024 with their labels.
    targets : int, sequence or Tensor, optional
        The output explained in each row; by default the predicted class.
    labels : sequence or Tensor, optional
        The true classes or values.
    masks : Tensor, optional
        Which elements or features belong to the object, for localisation metrics.
    space : Space, optional
        What a feature is; by default steps, tokens, columns or pixels, of images with more than 4,096
        pixels about 14 x 14 patches.
    fill : Fill, str, float or callable, optional
        What takes the place of a removed feature.
    train : Tensor, array, data frame, or pair with labels, optional
        Reference rows.
    side : Tensor, tuple or mapping
        Further inputs of each row, by position or name.
    train_side : Tensor, tuple or mapping
        The same of the reference rows.
    head : {"multiclass", "multilabel", "regression", "generation"}, optional
        What outputs are; by default read from the outputs for one row.
    output : callable or int, optional
        Picks the outputs out of what the model returns, or one of several targets.
    ids : sequence or Tensor, optional
        Names of the rows; by default their numbers.
    device : str or torch.device, optional
        Where to compute; by default where the model lies.
    plan : Plan, optional
        How the model is run: rows per chunk, precision.
    name : str
        Name of the task in tables.
    copy : callable, optional
        Copies a model that Python cannot copy.

    Examples
    --------
    >>> model = nn.Linear(4, 3)
    >>> Task(model, torch.zeros(2, 4))
    Task: 2 samples of (4,), 3 outputs (multiclass), 4 column features, on cpu

    What follows from it (its outputs, and whatever is a `fact` of it) is computed when it is first read.
    """

    made_by: ClassVar[str] = "make one: task = vd.Task(model, inputs)"
    """What a message says where something else was given."""

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
    moves: float
    """How far outputs of the same rows move from call to call, as a share of their size; 0 is steady."""
    estimates: dict[str, Any]
    """What metrics estimated from this whole set, by settings; parts taken later have the same."""
    companions: Mapping[str, Task]
    """This very task on other models that were perturbed along with it, by what made them."""
    known_outputs: Tensor | None
    """All outputs (N, C) where they have been computed."""
    _targets: Tensor | None
    _facts: dict[Any, Any]
    _train_facts: dict[Any, Any]
    labels: Tensor | None
    train_labels: Tensor | None
    train_side: Side
    reference: Task
    """The unperturbed task from which this one was made."""
    name: str
    _plan_given: bool
    _targets_given: bool
    noise_share: float = 0.0
    """How far along a noise path this perturbed task lies: 0 unperturbed, 1 at the path's end."""
    members: Task | None = None
    """Where samples stand for classes: the rows by which the model's movement on each class is measured."""

    @checked
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
        output: Output | int | None = None,
        ids: Any = None,
        device: Any = None,
        plan: Plan | None = None,
        name: str = "task",
        copy: Copier | None = None,
    ) -> None:
        put = self.__dict__
        put["name"] = visible(name)
        if isinstance(output, int):
            model, output = one_target(model, output), None
        classes = class_names(model)
        put.update(estimates={}, companions={}, known_outputs=None, _facts={}, _train_facts={})
        put["_plan_given"] = plan is not None and plan.rows is not None
        if isinstance(train, tuple) and len(train) != 2:
            raise InputError(f"train is rows, or (rows, labels); got a tuple of {len(train)}")
        train_rows, train_labels = train if isinstance(train, tuple) else (train, None)
        (inputs, own_labels), (train_rows, own_train) = (
            collected(inputs, "inputs"),
            collected(train_rows, "train"),
        )
        labels = own_labels if labels is None else labels
        train_labels = own_train if train_labels is None else train_labels
        if head is None and labels is not None and holds_several(labels):
            head = "multilabel"
            warn("several ones stand in a row of labels, so several outputs may hold: head='multilabel'")
        inputs, train_rows = as_pandas(inputs), as_pandas(train_rows)
        codec = (
            FrameCodec.of(inputs, train_rows if is_frame(train_rows) else None) if is_frame(inputs) else None
        )
        may_miss = not isinstance(model, nn.Module)
        rows = tensor_of(inputs, "inputs", codec, may_miss)
        place, dtype = home_of(model, device)
        rows = cast(rows, place, dtype)
        put["inputs"] = rows
        put["side"] = side_of(side, len(rows), place)
        # reference rows stand in for inputs, so they have their dtype: a mean of integers would be cut
        put["train"] = (
            None if train_rows is None else tensor_of(train_rows, "train", codec, may_miss).to(rows)
        )
        if self.train is not None and self.train.shape[1:] != rows.shape[1:]:
            raise ShapeError(
                f"train rows have shape {tuple(self.train.shape[1:])}, inputs have {tuple(rows.shape[1:])}"
            )
        put["train_labels"], put["train_side"] = None, ()
        if self.train is not None:
            put["train_side"] = side_of(train_side, len(self.train), place)
            if train_labels is not None:
                put["train_labels"] = labels_of(train_labels, len(self.train), place, classes)

        raw = output or plain_output
        first_side = take_side(self.side, slice(0, 1))
        module, differentiable, implied = adapt(
            model,
            lambda f, row: raw(call(f, row, first_side)),
            rows[:1].clone(),
            codec,
            rows if self.train is None else self.train,
            copy,
        )
        source = Snapshot(module, copy, module is not model, model)
        if module is model and any(map(trains, module.modules())) and behaves_otherwise(module):
            warn(
                "the model is in training mode, where dropout or batch normalisation make its outputs "
                "random; it is evaluated in eval mode here, and stays as it is"
            )
        put["head"], put["n_outputs"], plan, put["moves"] = first_outputs(
            source, raw, rows[:2], take_side(self.side, slice(0, 2)), plan, head or implied
        )
        put["predictor"] = Predictor(source, two_columns(raw, self.head), place, plan, differentiable)

        names = None if codec is None else codec.columns
        if space is None:
            space = Space.columns(rows.shape[1], names) if codec else Space.of(rows)
            say_patches(space)
            look_for_bytes(rows)
            look_for_channels_last(rows)
            look_for_time_first(rows, module)
        put["space"] = checked_space(space, rows).to(place)
        put["fill"] = default_fill(self.space, self.train is not None) if fill is None else as_fill(fill)
        put["ids"] = ids_of(ids, len(rows), place)
        put["draw_ids"] = sample_digests(rows, self.side, self.space)
        put["labels"] = None if labels is None else labels_of(labels, len(rows), place, classes)
        if self.head == "multiclass" and self.labels is not None and self.labels.dim() > 1:
            raise ShapeError(
                f"labels have shape {tuple(self.labels.shape)}; classes are one number per sample: "
                "labels.argmax(1) where rows are one-hot, or say head='multilabel' where several may hold"
            )
        put["masks"] = None if masks is None else masks_of(masks, self.space, len(rows), place)
        given = None if targets is None else targets_of(targets, len(rows), self.n_outputs, place, classes)
        put.update(_targets=given, _targets_given=given is not None, reference=self)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a task is never changed in place; use task.with_...() to change '{name}'")

    # --- what the model says to the inputs ----------------------------------------------------------

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
        if self.known_outputs is not None:
            self.predictor.source.check()
            return self.known_outputs
        outputs: Tensor = self.uncounted(lambda: self.predictor.outputs(self.inputs, self.side))
        self.__dict__["known_outputs"] = outputs
        return outputs

    @property
    def predictions(self) -> Tensor:
        """The predicted class of each sample (the strongest label when several may hold)."""
        if self.head == "generation" or (self.head == "regression" and self.n_outputs == 1):
            return torch.zeros(len(self), dtype=torch.int64, device=self.device)
        return self._strongest()

    @fact
    def _strongest(self) -> Tensor:
        return self.outputs.argmax(-1)

    @property
    def undecided(self) -> bool:
        """Whether nobody said which of several quantities is explained; the largest would mean nothing."""
        return self._targets is None and self.head == "regression" and self.n_outputs > 1

    @property
    def targets(self) -> Tensor:
        """The output explained in each sample: given, or the prediction."""
        if self.undecided:
            raise InputError(
                f"the model has {self.n_outputs} quantities as outputs, and one of them is explained: choose "
                "it with targets=0 (or 1, ..., or one number per sample)"
            )
        return self.predictions if self._targets is None else self._targets

    def probabilities(self, outputs: Tensor) -> Tensor:
        """The outputs on the scale of probabilities; others than classes stay as they are."""
        if self.head in ("regression", "generation"):
            return outputs
        return outputs.softmax(-1) if self.head == "multiclass" else outputs.sigmoid()

    def respond(self, outputs: Tensor, response: Response = "probability") -> Tensor:
        """The numbers that metrics read: probabilities, or the outputs as they are.

        Of a generation they are one column; the other one says how many tokens are kept.
        """
        if self.head == "generation":
            return outputs[..., :1]
        return self.probabilities(outputs) if response == "probability" else outputs

    @fact
    def clean_response(self, response: Response) -> Tensor:
        """The response of the explained output to the untouched inputs (N, 1)."""
        return self.respond(self.outputs, response).gather(1, self.targets[:, None])

    def session(self, grad: bool = False) -> AbstractContextManager[CountedModel]:
        """Run the model by hand: `with task.session(grad=True) as model: model(x, ...)`. Rows count."""
        return self.predictor.session(grad)

    def uncounted(self, evaluate: Callable[[], Any]) -> Any:
        """Ask the model outside the meter: what a task or a check of ours wants to know is nobody's cost."""
        tally = self.predictor.meter.here
        before = tally.forward, tally.backward
        try:
            return evaluate()
        finally:
            tally.forward, tally.backward = before

    def chunks(self, rows_per_sample: int = 1) -> Iterator[Task]:
        """The task in pieces that fill one chunk each when every sample takes `rows_per_sample` rows."""
        size = max(1, self.predictor.rows // max(1, rows_per_sample))
        if size >= len(self):
            return iter([self])
        return (self[at : at + size] for at in range(0, len(self), size))

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
        """A digest of everything that decides the outputs here."""
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

    # --- every change is a task ---------------------------------------------------------------------

    def changed(
        self,
        *,
        alone: bool = False,
        targets: Tensor | Literal["kept", "predicted"] = "kept",
        outputs: Tensor | None = None,
        **changes: Any,
    ) -> Task:
        """A task that differs in these attributes; what is explained stays, unless `targets` says otherwise.

        It begins with no facts but its `outputs`, if they are known. `alone` makes it its own reference.
        """
        if isinstance(targets, str):
            targets = self.targets if targets == "kept" else None  # type: ignore[assignment]
        if "train" in changes:
            changes["_train_facts"] = {}
        if "inputs" in changes and "ids" in changes and "draw_ids" not in changes:
            # other samples, with draws of their own
            changes["draw_ids"] = sample_digests(
                changes["inputs"], changes.get("side", self.side), changes.get("space", self.space)
            )
        task = object.__new__(type(self))
        task.__dict__.update(self.__dict__)
        task.__dict__.update(estimates={}, companions={}, known_outputs=outputs, _facts={}, _targets=targets)
        task.__dict__.update(changes)
        if alone:
            task.__dict__["reference"] = task
        return task

    def with_weights(self, weights: Mapping[str, Tensor] | Weights) -> Task:
        """The same task under other weights: tensors by parameter name, or anything that writes them.

        They are written into a private copy of the model whenever this task is evaluated.
        """
        predictor = self.predictor
        if isinstance(weights, Mapping):
            weights = Replaced(fitting(predictor.source.module, weights), predictor.weights)
        return self.changed(predictor=predictor.with_weights(weights))

    def with_module(self, module: nn.Module, output: Output | None = None) -> Task:
        """The same task with another module as its model (a fine-tuned one, say); targets stay."""
        old = self.predictor
        new = replace(
            old, source=Snapshot(module, meter=old.meter), output=output or old.output, weights=None, wraps=()
        )
        return self.changed(predictor=new)

    def with_noise(self, sigma: float, key: Key, layer: str | None = None, step: float = 1.0) -> Task:
        """The same task with every weight multiplied by 1 + step * (eta - 1), eta ~ N(1, sigma^2).

        The draw depends on the key and the parameter's name alone; `layer` limits the noise to one submodule.
        It warns where noise changes no output.
        """
        predictor = self.predictor
        noise = NoiseSource(predictor.source.module, layer)
        if sigma > 0 and not self._noise_reaches_outputs(layer):
            warn(
                "weight noise changes no output of this model: its forward pass does not use the parameters "
                "that torch lists for it"
            )
        return self.with_weights(Noisy(noise, key, step * sigma, predictor.weights))

    @fact
    def _noise_reaches_outputs(self, layer: str | None) -> bool:
        """Whether noise on the weights (of one submodule) changes the outputs of a few samples."""
        some, predictor = slice(0, 8), self.predictor
        noise = Noisy(NoiseSource(predictor.source.module, layer), Key(0) / "reach", 0.1, predictor.weights)
        inputs, side = self.inputs[some], take_side(self.side, some)
        clean, noisy = self.uncounted(
            lambda: [p.outputs(inputs, side) for p in (predictor, predictor.with_weights(noise))]
        )
        return not torch.equal(clean, noisy)

    def refreshed(self) -> Task:
        """The same task for the model as it is now, when it has changed: nothing computed before is kept."""
        source = self.predictor.source
        rows = self.inputs if self.train is None else self.train
        again = readapted(source.original, source.module, rows, source.copier) if source.shared else None
        predictor = replace(self.predictor, source=source.renewed(again))
        if self._targets_given and self._targets is not None:
            return self.changed(alone=True, predictor=predictor, targets=self._targets)
        return self.changed(alone=True, predictor=predictor, targets="predicted")

    def with_inputs(self, inputs: Tensor) -> Task:
        """The same task at other inputs of the same shape; targets stay those of the original inputs."""
        if inputs.shape != self.inputs.shape:
            raise ShapeError(f"inputs have shape {tuple(inputs.shape)}, expected {tuple(self.inputs.shape)}")
        return self.changed(inputs=inputs.to(device=self.device, dtype=self.inputs.dtype, copy=True))

    def with_targets(self, targets: Any) -> Task:
        """The same task explained for other outputs."""
        chosen = targets_of(targets, len(self), self.n_outputs, self.device)
        return self.changed(
            alone=self.undecided, targets=chosen, outputs=self.known_outputs, _targets_given=True
        )

    def with_space(self, space: Space, fill: Fill | None = None) -> Task:
        """The same task with other features."""
        chosen = checked_space(space, self.inputs).to(self.device)
        masks = self.masks
        if masks is not None:
            masks = masks_of(self.space.expand(masks), chosen, len(self), self.device)
        return self.changed(space=chosen, masks=masks, fill=fill or self.fill)

    def with_fill(self, fill: Fill | str | float | Callable[[Tensor, Tensor], Tensor]) -> Task:
        """The same task with another fill."""
        return self.changed(fill=as_fill(fill))

    def with_plan(self, plan: Plan) -> Task:
        """The same task run in other chunks or at another precision."""
        if plan.rows is None:
            plan = replace(plan, rows=self.predictor.rows)
        return self.changed(predictor=replace(self.predictor, plan=plan), estimates=dict(self.estimates))

    def at_embeddings(self) -> Task:
        """The same text task where inputs are the embeddings made by the current, perhaps noisy, weights."""
        if self.inputs.is_floating_point():
            return self
        layer = embedding_layer(self.predictor.model)
        if layer is None:
            raise NotApplicableError(
                "the model has no nn.Embedding layer, so its tokens have no embeddings to explain at"
            )
        predictor = self.predictor.wrapped(partial(EmbeddingView, layer=layer))
        with predictor.session():
            view = predictor.model
            assert isinstance(view, EmbeddingView)
            inputs = view.embed(self.inputs)
            train = None if self.train is None else view.embed(self.train[:1024])
        side: Side = (
            {TOKEN_IDS: self.inputs, **self.side}
            if isinstance(self.side, dict)
            else (self.inputs, *self.side)
        )
        return self.changed(
            predictor=predictor,
            inputs=inputs.detach(),
            train=None if train is None else train.detach(),
            side=side,
            space=self.space.at_embeddings(inputs.shape[-1]),
            fill=as_fill(0.0),
        )

    def to(self, device: torch.device | str) -> Task:
        """A task on another device; a module on another one is copied there, the caller's stays."""
        place = as_device(device)
        if place == self.device or (place.type == self.device.type and place.index is None):
            return self
        old = self.predictor
        names = "inputs ids draw_ids masks labels train train_labels space members".split()
        moved: dict[str, Any] = {
            name: None if getattr(self, name) is None else getattr(self, name).to(place) for name in names
        }
        rows = old.plan.rows if self._plan_given else _rows_on(place, self.device, old.rows)
        return self.changed(
            alone=True,
            predictor=replace(
                old, source=old.source.to(place), device=place, plan=replace(old.plan, rows=rows)
            ),
            targets=self.targets.to(place),
            side=side_of(self.side, None, place),
            train_side=side_of(self.train_side, None, place),
            **moved,
        )

    def __getitem__(self, index: Any) -> Task:
        """The task on a subset of its samples; ids and draws stay theirs."""
        if isinstance(index, int | np.integer):
            if not -len(self) <= index < len(self):
                raise OutOfRangeError(f"sample {index} of a task of {len(self)} samples is not there")
            index = [int(index)]
        if isinstance(index, slice) and (index.step or 1) < 0:
            index = list(range(len(self)))[index]
        if not isinstance(index, slice):
            index = _places(index, len(self)).to(self.device)
        changes: dict[str, Any] = {
            n: None if getattr(self, n) is None else getattr(self, n)[index]
            for n in ("inputs", "ids", "draw_ids", "masks", "labels")
        }
        if not len(changes["inputs"]):
            raise InputError("a task needs at least one sample; this selection is empty")
        outputs = self.known_outputs
        task = self.changed(
            **changes,
            targets=self.targets[index],
            side=take_side(self.side, index),
            space=self.space.take(index),
            outputs=None if outputs is None else outputs[index],
            estimates=dict(self.estimates),
        )
        task.__dict__["reference"] = task if self.reference is self else self.reference[index]
        return task


def _places(index: Any, count: int) -> Tensor:
    """Numbers of samples, or a boolean mask over them, each of them there."""
    places = as_tensor(index, "a selection of samples")
    places = places if places.numel() else places.long()
    if places.dtype == torch.bool:
        if tuple(places.shape) != (count,):
            raise ShapeError(
                f"a selection by a boolean mask has shape {tuple(places.shape)}, expected ({count},)"
            )
        return places
    if places.is_floating_point() or places.is_complex():
        raise InputError(f"samples are selected by integers or a boolean mask, not by {places.dtype}")
    if places.dtype == torch.uint8:
        raise InputError(
            "uint8 may mean numbers of samples or a boolean mask; say which by .long() or .bool()"
        )
    places = places.long()
    wrong = places[(places < -count) | (places >= count)]
    if wrong.numel():
        raise OutOfRangeError(f"sample {int(wrong[0])} of a task of {count} samples is not there")
    return places


def _rows_on(place: torch.device, here: torch.device, rows: int) -> int:
    """Rows per chunk on another kind of device: as many more as its budget is larger."""
    return max(MIN_ROWS, min(most_rows(place), rows * memory_budget(place) // memory_budget(here)))
