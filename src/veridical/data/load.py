"""A task from a model and data on disk: what `--model` and `--data` of the command line mean."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from veridical.data.files import Examples, read_arrays, read_examples, some_rows
from veridical.data.huggingface import ImageReader, classifier, from_huggingface, output_names
from veridical.data.images import (
    image_space,
    mask_reader,
    read_images,
    read_masks,
    reference_images,
    rule_for,
)
from veridical.data.model_files import Kind, LoadedModel, load_model
from veridical.data.onnx_models import OnnxFunction
from veridical.data.prompt_files import from_prompts, is_language_model
from veridical.data.tables import (
    Labels,
    WordFunction,
    from_table,
    is_text,
    label_column,
    label_values,
    numbered,
    split_words,
    takes_texts,
    texts_of,
    word_rows,
)
from veridical.errors import InputError, ShapeError, VeridicalWarning
from veridical.models.embeddings import embedding_layer
from veridical.models.estimators import class_names, column_names, is_estimator, one_target
from veridical.models.output_heads import PROBABILITIES
from veridical.models.predictor import Output, plain_output
from veridical.perturb.fills import Token
from veridical.values.input_checks import as_device
from veridical.values.space import Space
from veridical.values.task import Task

if TYPE_CHECKING:
    import pandas as pd


def load_task(
    model: Any,
    data: Any,
    *,
    arch: Any = None,
    labels: str | None = None,
    train: Any = None,
    kind: Kind | None = None,
    allow_code: bool = False,
    samples: int | None = None,
    device: torch.device | str | None = None,
    name: str | None = None,
    masks: Any = None,
    text: str | None = None,
    classes: Sequence[str] | None = None,
    image: dict[str, Any] | None = None,
    seed: int = 0,
    **settings: Any,
) -> Task:
    """A task from the user's own model and data.

    Code runs only with `allow_code`: an architecture is code, and a joblib file can contain any.

    Parameters
    ----------
    model
        A folder in Hugging Face's layout (or `hf:owner/name` to fetch one from the hub), a file of weights
        with `arch`, a scikit-learn estimator in a .joblib file, an .onnx file, or a model in memory. A
        folder or GGUF file of a causal language model takes prompts as `data`.
    data
        A .npz, .npy or .safetensors file of arrays, a .csv, .tsv, .parquet or .jsonl table, a folder of
        images (one subfolder per class), or the same in memory. Prompts are a .jsonl file with the fields
        prompt and, if wanted, question, answer, foil, units and id.
    arch : str or callable, optional
        Builds the network of a file of weights; `module:function` where it is a text.
    labels : str, optional
        The column or array of true classes; may be left out where one alone can be meant.
    train : optional
        Reference rows, in any form that `data` has.
    kind : str, optional
        What a model file is ("huggingface", "weights", "sklearn", "onnx") where its suffix does not say it.
    allow_code : bool
        Whether code that comes with the model may run.
    samples : int, optional
        Keeps a random part of the data, the same for the same `seed`.
    device : torch.device or str, optional
        Where the model runs.
    name : str, optional
        What the task is called.
    masks : optional
        Object masks: an array, a file of one, or a folder of images named like those of `data`.
    text : str, optional
        The column of texts.
    classes : sequence of str, optional
        Names of the model's outputs in their order.
    image : dict, optional
        How images are read (arguments of `veridical.data.images.read_image`) for a model that does not say
        it.
    seed : int
        Which samples are kept.
    **settings
        Go to `Task`; `units` and `off` of prompts are those of `vd.models.Generation`.

    Returns
    -------
    Task

    Raises
    ------
    InputError
        Where model and data do not fit together, or code would have to run that nobody allowed.
    FormatError
        Where a file is not what its suffix says.

    Examples
    --------
    >>> rows = torch.eye(3)
    >>> load_task(torch.nn.Linear(3, 2), rows, name="mine")
    Task: 3 samples of (3,), 2 outputs (multiclass), 3 column features, on cpu
    """
    if samples is not None and samples < 1:
        raise InputError(f"a task needs at least one sample, got samples={samples}")
    place = None if device is None else as_device(device)
    if is_language_model(model):
        others = {"train": train, "labels": labels, "masks": masks, "text": text}
        others |= {"classes": classes, "image": image, "arch": arch, "name": name}
        return from_prompts(model, data, samples, seed, place, {**others, **settings})
    found = read_examples(data, labels)
    reference = None if train is None else read_examples(train, labels, reference=True)
    if reference is not None and reference.kind != found.kind:
        raise InputError(
            f"the data is {_KINDS[found.kind]} and the reference rows are {_KINDS[reference.kind]}; "
            "both must be of one kind"
        )
    loaded = load_model(model, arch=arch, kind=kind, allow_code=allow_code, device=place)
    if isinstance(settings.get("output"), int):
        loaded = replace(loaded, model=one_target(loaded.model, settings.pop("output")))
    rows = some_rows(found.count, samples, seed)
    settings = {"name": name or f"{loaded.name} on {found.name}", "ids": rows, **settings}
    request = Request(found, reference, rows, labels, text, classes, image, masks, settings)
    if loaded.kind == "huggingface":
        return _from_folder(loaded, request, place)
    by_data = {"images": _from_images, "table": _from_columns, "arrays": _from_arrays}
    build = _from_words if takes_texts(loaded.model) else by_data[found.kind]
    task = build(loaded, request)
    return task if place is None else task.to(place)


_KINDS = {"arrays": "arrays", "table": "a table", "images": "a folder of images"}


@dataclass(frozen=True, eq=False)
class Request:
    """Data, reference data, the rows that were drawn, and what the user said about them."""

    data: Examples
    reference: Examples | None
    rows: Tensor
    labels: str | None = None
    text: str | None = None
    classes: Sequence[str] | None = None
    image: dict[str, Any] | None = None
    masks: Any = None
    settings: dict[str, Any] = field(default_factory=dict)
    """What goes to `Task`; a builder adds to it."""

    def drawn(self, values: Any, what: str) -> Any:
        """The drawn rows of something that has one entry per row of the data."""
        if len(values) != self.data.count:
            raise ShapeError(f"{len(values)} {what} for {self.data.count} samples")
        if isinstance(values, list):
            return [values[i] for i in self.rows.tolist()]
        return values[self.rows if isinstance(values, Tensor) else self.rows.numpy()]

    def drawn_labels(self, labels: Labels) -> Any:
        """The labels of the drawn rows; None where there are none."""
        return None if labels.values is None else self.drawn(labels.values, "labels")

    def training(self) -> tuple[Any, Any]:
        """Reference rows and their labels: those of their own file, or arrays beside the data."""
        if self.reference is not None:
            return self.reference.rows, self.reference.arrays.get("labels")
        return self.data.arrays.get("train"), self.data.arrays.get("train_labels")

    def texts(self) -> tuple[list[str], Any, list[str] | None, Any]:
        """Drawn texts, labels of all texts, reference texts and their labels."""
        texts, labels = texts_of(self.data, self.labels, self.text)
        if self.reference is not None:
            train = texts_of(self.reference, self.labels, self.text, reference=True)
        else:
            rows, train_labels = self.training()
            train = (None if rows is None else list(rows), train_labels)  # type: ignore[assignment]
        return self.drawn(texts, "texts"), labels, *train

    def images(self, read_mask: Callable[[Path], Tensor]) -> tuple[Any, Any, Any, Any]:
        """Drawn image files, names of the classes of all, reference images and their classes."""
        data = self.data
        assert data.folder is not None
        files = self.drawn(data.rows, "images")
        self.settings["ids"] = [file.relative_to(data.folder).as_posix() for file in files]
        if self.masks is not None:
            self.settings["masks"] = read_masks(self.masks, data.folder, files, read_mask)
        train, names = (None, None) if self.reference is None else reference_images(self.reference)
        return files, data.classes, train, names

    def arrays(self, what: str) -> tuple[Any, Any, Any, Any]:
        """Drawn rows, labels of all rows, reference rows and their labels; masks become a setting."""
        masks = self.object_masks()
        if masks is not None:
            self.settings["masks"] = masks
        return self.drawn(self.data.rows, what), self.data.arrays.get("labels"), *self.training()

    def object_masks(self) -> Any:
        """Masks given as an array or a file of one, of the drawn rows; None if there are none."""
        found = self.masks if self.masks is not None else self.data.arrays.get("masks")
        if isinstance(found, str | Path):
            arrays = read_arrays(found)
            if "masks" not in arrays and len(arrays) > 1:
                raise InputError(f"{found} holds {', '.join(sorted(arrays))}; which of them is 'masks'?")
            found = arrays["masks"] if "masks" in arrays else next(iter(arrays.values()))
        return None if found is None else self.drawn(found, "masks")


# --- what the data is -----------------------------------------------------------------------------------


def _from_images(loaded: LoadedModel, request: Request) -> Task:
    """The task on a folder of images, prepared as the model wants them."""
    if is_estimator(loaded.model):
        raise InputError("a scikit-learn estimator takes rows of numbers; write the images to an .npz file")
    rule = rule_for(loaded, request.image)
    files, names, train, train_names = request.images(mask_reader(rule))
    rows = read_images(files, rule)
    request.settings.setdefault("space", image_space(rows.shape[1:]))
    train = None if train is None else read_images(train, rule)
    labels = Labels() if names is None else numbered(names, train_names, names=request.classes)
    return _made(loaded, request, rows, train, labels)


def _from_arrays(loaded: LoadedModel, request: Request) -> Task:
    """The task on arrays."""
    if is_text(request.data.rows):
        raise InputError(
            "the data is text and the model brings no tokenizer for it; give a folder in Hugging Face's "
            "layout, which does, or an .npz file of token ids"
        )
    rows, labels, train, train_labels = request.arrays("rows")
    if "targets" in request.data.arrays:
        request.settings.setdefault("targets", request.drawn(request.data.arrays["targets"], "targets"))
    found = numbered(labels, train_labels, class_names(loaded.model), request.classes)
    train = None if train is None else _as_numbers(train, loaded.model)
    return _made(loaded, request, _as_numbers(rows, loaded.model), train, found)


def _as_numbers(rows: Any, model: Any) -> Tensor:
    """Rows as a tensor; whole numbers become fractions for a model that embeds no tokens."""
    tensor = rows if isinstance(rows, Tensor) else torch.as_tensor(np.array(rows))
    tokens = tensor.dim() == 2 and isinstance(model, nn.Module) and embedding_layer(model) is not None
    tokens = tokens or (isinstance(model, OnnxFunction) and "int" in model.inputs[0].type)
    if tensor.is_floating_point() or tokens:
        return tensor
    if tensor.dtype == torch.uint8 and tensor.dim() > 2:
        warnings.warn(
            "the inputs are bytes and reach the model as the numbers 0 to 255; if it was trained on others, "
            "scale them in the file",
            VeridicalWarning,
            stacklevel=5,
        )
    return tensor.float()


def _from_columns(loaded: LoadedModel, request: Request) -> Task:
    """The task on a table: an estimator in its raw columns, any other model in numbers."""
    model, frame = loaded.model, request.data.rows
    features = column_names(model)
    label = label_column(frame, request.labels, features)
    frame = _known_columns(frame, features, label)
    train = None if request.reference is None else _known_columns(request.reference.rows, features, label)
    values, train_values = (label_values(f, label) for f in (frame, train))
    labels = (
        Labels() if label is None else numbered(values, train_values, class_names(model), request.classes)
    )
    table = frame.drop(columns=[label], errors="ignore")
    reference = None if train is None else train.drop(columns=[label], errors="ignore")
    drawn = table.iloc[request.rows.tolist()].reset_index(drop=True)
    settings = request.settings
    if is_estimator(model) and features is None and not _categories(table):
        # an estimator that was fitted without column names wants none
        names = [str(name) for name in table.columns]
        settings.setdefault("space", Space.columns(len(names), names))
        rows = torch.from_numpy(drawn.to_numpy(np.float64, copy=True))
        known = None if reference is None else torch.from_numpy(reference.to_numpy(np.float64, copy=True))
        return _made(loaded, request, rows, known, labels)
    if not is_estimator(model):
        drawn, reference = _with_all_levels(table, drawn, reference)
        if labels.fractions:
            settings.setdefault("head", "regression")
    make = partial(
        from_table,
        model,
        drawn,
        train=reference,
        train_labels=labels.train,
        labels=request.drawn_labels(labels),
        masks=request.object_masks(),
        one_hot=True if isinstance(model, OnnxFunction) else None,
        **settings,
    )
    try:
        task = make() if is_estimator(model) else _on_logit_scale(make)
    except ShapeError as error:
        columns = ", ".join(f"'{name}'" for name in table.columns)
        hint = (
            "" if label is not None else "; if one of them is the label, name it with --labels (labels=...)"
        )
        raise ShapeError(f"{error}. The columns are {columns}{hint}") from error
    return labels.checked(task)


def _from_words(loaded: LoadedModel, request: Request) -> Task:
    """The task of an estimator that begins with a vectoriser: a removed word is left out of the text."""
    texts, given, train, train_given = request.texts()
    labels = numbered(given, train_given, class_names(loaded.model), request.classes)
    split, known = split_words(texts), split_words(train or ())
    empty = [row for row, words in enumerate(split) if not words]
    if empty:
        raise InputError(f"{len(empty)} texts have no word at all (first: {empty[:5]}); leave them out")
    words = sorted({word for text in (*split, *known) for word in text})
    number = {word: place for place, word in enumerate(words, 1)}
    longest = max(map(len, split))
    rows = word_rows(split, number, longest)
    function = WordFunction(loaded.model, words)
    names = [[*text, *[""] * (longest - len(text))] for text in split]
    settings = {
        "space": Space.tokens(longest, rows > 0, names),
        "fill": Token(0),
        "head": function.head,
        **request.settings,
        "labels": request.drawn_labels(labels),
    }
    if train is not None:
        reference = word_rows(known, number, longest)
        settings["train"] = reference if labels.train is None else (reference, labels.train)
    return labels.checked(Task(function, rows, **settings))


def _from_folder(loaded: LoadedModel, request: Request, device: torch.device | None) -> Task:
    """The task of a text or image classifier in Hugging Face's layout."""
    config, options, kind = classifier(loaded.model)
    if kind == "text":
        inputs, given, train, train_given = request.texts()
    elif request.data.kind == "arrays" and not is_text(request.data.rows):
        inputs, given, train, train_given = request.arrays("images")
    elif request.data.kind == "images":
        reader = ImageReader(loaded.model, config, options)
        inputs, given, train, train_given = request.images(reader.mask)
        given = None if given is None else reader.known_classes(given)
        train_given = None if given is None or train_given is None else reader.known_classes(train_given)
    else:
        raise InputError("the model classifies images; give a folder of them or an array (N, channels, H, W)")
    names = request.classes or output_names(config)
    labels = Labels() if given is None else numbered(given, train_given, names=names)
    if labels.fractions:
        request.settings.setdefault("head", "regression")
    task = from_huggingface(
        loaded.model,
        inputs,
        labels=request.drawn_labels(labels),
        train=train if train is None or labels.train is None else (train, labels.train),
        device=device,
        **request.settings,
    )
    return labels.checked(task)


def _made(loaded: LoadedModel, request: Request, rows: Tensor, train: Tensor | None, labels: Labels) -> Task:
    """The task on rows of numbers."""
    model, settings = loaded.model, request.settings
    if isinstance(model, OnnxFunction):
        model.check_rows(rows.shape[1:])
    wanted = getattr(model, "n_features_in_", None)
    if wanted is not None and rows.dim() == 2 and rows.shape[1] != wanted:
        raise ShapeError(f"the estimator takes {wanted} columns, the data has {rows.shape[1]}")
    settings["labels"] = request.drawn_labels(labels)
    if labels.fractions and not is_estimator(model):
        settings.setdefault("head", "regression")
    if train is not None:
        settings["train"] = train if labels.train is None else (train, labels.train)
    make = partial(Task, model, rows, **settings)
    return labels.checked(make() if is_estimator(model) else _on_logit_scale(make))


def _known_columns(frame: pd.DataFrame, features: list[str] | None, label: Any) -> pd.DataFrame:
    """The columns an estimator was fitted on, in its order, and the label; all of them if it names none."""
    if features is None:
        return frame
    missing = [name for name in features if name not in frame.columns]
    if missing:
        raise InputError(
            f"the model was fitted on columns {missing} that are not there; the table has "
            f"{[str(name) for name in frame.columns]}"
        )
    spare = [str(name) for name in frame.columns if name not in features and name != label]
    if spare:
        warnings.warn(
            f"columns {spare} are left out: the model was not fitted on them", VeridicalWarning, stacklevel=5
        )
    return frame[[*features, *([label] if label in frame.columns else [])]]


def _categories(frame: pd.DataFrame) -> list[Any]:
    """The columns that are no numbers."""
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    return [n for n in frame.columns if not is_numeric_dtype(frame[n]) or is_bool_dtype(frame[n])]


def _with_all_levels(
    table: pd.DataFrame, drawn: pd.DataFrame, reference: pd.DataFrame | None
) -> tuple[pd.DataFrame, pd.DataFrame | None]:
    """Categories with the levels of the whole table: those drawn may lack some, and would be narrower."""
    import pandas as pd

    for name in _categories(table):
        values = set(table[name]) | (set() if reference is None else set(reference.get(name, ())))
        levels = pd.CategoricalDtype(sorted(values, key=repr))
        drawn = drawn.assign(**{str(name): drawn[name].astype(levels)})
        if reference is not None and name in reference.columns:
            reference = reference.assign(**{str(name): reference[name].astype(levels)})
    return drawn, reference


# --- models that answer probabilities -------------------------------------------------------------------


SMALLEST = 1e-12
CLOSE = 1e-3


def log_probabilities(answer: object) -> Tensor:
    """The logarithm of a model's probabilities: their softmax is what the model said."""
    return plain_output(answer).clamp(min=SMALLEST).log()


def log_odds(answer: object) -> Tensor:
    """The logit of a single probability."""
    return torch.logit(plain_output(answer), eps=1e-7)


def _on_logit_scale(make: Callable[..., Task]) -> Task:
    """The task `make()` gives, made again with `output=` if its model answers probabilities.

    A task reads outputs as logits. Probabilities read so would be squeezed by a second softmax, and every
    response with them.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", PROBABILITIES, VeridicalWarning)
        task = make()
    output = _probability_output(task)
    if output is None:
        return task
    warnings.warn(
        "the model answers probabilities; they are read on the scale of logits (as their logarithms), so "
        "that responses are those probabilities and not a second softmax of them",
        VeridicalWarning,
        stacklevel=3,
    )
    return make(output=output)


def _probability_output(task: Task) -> Output | None:
    """The output function a model of probabilities needs; None for a model of logits."""
    outputs = task.outputs
    if task.head == "multiclass":
        sums = outputs.sum(1)
        each = bool((outputs >= -CLOSE).all()) and bool((sums - 1).abs().max() < CLOSE)
        return log_probabilities if each else None
    if task.head == "binary":
        single = outputs[:, 1]
        # logits of many samples are neither all positive nor all below one
        between = bool(((single >= 0) & (single <= 1)).all()) and len(task) >= 8
        return log_odds if between else None
    return None
