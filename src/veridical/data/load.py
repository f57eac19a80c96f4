"""A task from a model and data on disk: what `--model` and `--data` of the command line mean."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from veridical.core.space import Space
from veridical.data.files import Examples, read_arrays, read_examples, some_rows
from veridical.data.huggingface import ImageClassifier, TextReader, TokenClassifier, read_classifier
from veridical.data.images import ImageReader, read_masks, rule_for, some_references
from veridical.data.model_files import HUB, Kind, LoadedModel, load_model
from veridical.data.onnx_models import OnnxFunction
from veridical.data.prompt_files import from_prompts, is_language_model
from veridical.data.tables import (
    MAX_WORDS,
    Labels,
    WordFunction,
    column_space,
    is_text,
    label_column,
    label_values,
    one_hot,
    takes_texts,
    texts_of,
    word_rows,
)
from veridical.errors import InputError, ShapeError, VeridicalWarning, warn
from veridical.models.dataframes import FrameCodec
from veridical.models.embeddings import embedding_layer
from veridical.models.estimators import class_names, column_names, is_estimator, one_target
from veridical.models.output_heads import PROBABILITIES
from veridical.models.predictor import plain_output
from veridical.perturb.fills import Token
from veridical.values.input_checks import as_device
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
        images (one subfolder per class), or the same in memory: an array, a mapping of arrays with the names
        that a file has, texts, a data frame. Prompts are a .jsonl file with the fields prompt and, if
        wanted, question, answer, foil, units and id.
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
        Go to `Task`; `units` and `off` of prompts are those of `vd.models.Generation`. The texts of a Hugging
        Face classifier are explained by `units="token"` or `"word"`, and cut to `length` tokens (128).

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
    loaded = load_model(model, arch=arch, kind=kind, allow_code=allow_code)
    if isinstance(settings.get("output"), int):
        loaded = replace(loaded, model=one_target(loaded.model, settings.pop("output")))
    rows = some_rows(found.count, samples, seed)
    settings = {"name": name or f"{loaded.name} on {found.name}", "ids": rows, **settings}
    request = Request(found, reference, rows, labels, text, classes, image, masks, settings)
    by_data = {"images": _from_images, "table": _from_columns, "arrays": _from_arrays}
    build = _from_words if takes_texts(loaded.model) else by_data[found.kind]
    task = (_from_folder if loaded.kind == "huggingface" else build)(loaded, request)
    return task if place is None else task.to(place)


def from_huggingface(
    source: str | Path, inputs: Any, *, labels: Any = None, train: Any = None, **settings: Any
) -> Task:
    """A task from a text or image classifier saved by transformers, and inputs in memory.

    Weights must be safetensors, and code that comes with a model never runs. Special tokens are no features,
    and removed tokens become padding, which the model does not attend to.

    Parameters
    ----------
    source : str or path
        A local folder; only a name that is no folder is looked up on the hub.
    inputs
        For a text classifier texts. For an image classifier a tensor (N, channels, height, width) that is
        ready for the model, or a folder of images, which are prepared by the model's own image processor.
    labels : sequence, optional
        Numbers of outputs, or names of the model's classes; of a folder its subfolders name them.
    train : optional
        Reference rows of the same kind, alone or in a tuple with their labels; texts are cut to the longest
        of `inputs`.
    **settings
        Go to `load_task`.

    Returns
    -------
    Task

    Raises
    ------
    FormatError
        Where the folder has no safetensors, lacks weights or a tokenizer, or brings code of its own.
    NotApplicableError
        Where it holds another kind of model.
    """
    train = {"inputs": train[0], "labels": train[1]} if isinstance(train, tuple) else train
    data = inputs if labels is None else {"inputs": inputs, "labels": labels}
    settings.setdefault("name", Path(source).name)
    model = source if Path(source).is_dir() else f"{HUB}{source}"
    return load_task(model, data, train=train, kind="huggingface", **settings)


_KINDS = {"arrays": "arrays", "table": "a table", "images": "a folder of images"}


@dataclass(frozen=True, eq=False)
class Request:
    """Data, reference data, the rows that were drawn, and what the user stated about them."""

    data: Examples
    reference: Examples | None
    rows: Tensor
    labels: str | None
    text: str | None
    classes: Sequence[str] | None
    image: dict[str, Any] | None
    masks: Any
    settings: dict[str, Any]
    """What goes to `Task`; a builder adds to it."""

    def drawn(self, values: Any, what: str) -> Any:
        """The drawn rows of something that has one entry per row of the data."""
        if len(values) != self.data.count:
            raise ShapeError(f"{len(values)} {what} for {self.data.count} samples")
        if isinstance(values, list):
            return [values[i] for i in self.rows.tolist()]
        return values[self.rows if isinstance(values, Tensor) else self.rows.numpy()]

    def training(self) -> tuple[Any, Any]:
        """Reference rows and their labels: those of their own file, or arrays beside the data."""
        if self.reference is not None:
            return self.reference.rows, self.reference.arrays.get("labels")
        return self.data.arrays.get("train"), self.data.arrays.get("train_labels")

    def texts(self) -> tuple[list[str], Any, list[str] | None, Any]:
        """Drawn texts, labels of all texts, reference texts and their labels."""
        texts, labels = texts_of(self.data, self.labels, self.text)
        if self.reference is not None:
            return self.drawn(texts, "texts"), labels, *texts_of(self.reference, self.labels, self.text, True)
        rows, train_labels = self.training()
        return self.drawn(texts, "texts"), labels, None if rows is None else list(rows), train_labels

    def object_masks(self) -> Any:
        """Masks given as an array or a file of one, of the drawn rows; None if there are none."""
        found = self.masks if self.masks is not None else self.data.arrays.get("masks")
        if isinstance(found, str | Path):
            arrays = read_arrays(found)
            if "masks" not in arrays and len(arrays) > 1:
                raise InputError(f"{found} holds {', '.join(sorted(arrays))}; which of them is 'masks'?")
            found = arrays["masks"] if "masks" in arrays else next(iter(arrays.values()))
        return None if found is None else self.drawn(found, "masks")

    def task(self, model: Any, rows: Any, train: Any, labels: Labels, **defaults: Any) -> Task:
        """The task on these rows, with masks and labels; `defaults` are settings that the user may change."""
        settings = {**defaults, **self.settings}
        if "masks" not in settings:
            settings["masks"] = self.object_masks()
        settings["labels"] = None if labels.values is None else self.drawn(labels.values, "labels")
        if labels.fractions and not is_estimator(model):
            settings["head"] = self.settings.get("head", "regression")
        if train is not None:
            settings["train"] = train if labels.train is None else (train, labels.train)
        make = partial(Task, model, rows, **settings)
        logits = is_estimator(model) or isinstance(model, WordFunction | TokenClassifier | ImageClassifier)
        return labels.checked(make() if logits else _on_logit_scale(make))


# --- what the data is -----------------------------------------------------------------------------------


def _from_images(
    loaded: LoadedModel, request: Request, reader: ImageReader | None = None, **defaults: Any
) -> Task:
    """The task on a folder of images, prepared as the model wants them."""
    if is_estimator(loaded.model):
        raise InputError("a scikit-learn estimator takes rows of numbers; write the images to an .npz file")
    reader = rule_for(loaded, request.image) if reader is None else reader
    data, settings = request.data, request.settings
    assert data.folder is not None
    files = request.drawn(data.rows, "images")
    settings["ids"] = [file.relative_to(data.folder).as_posix() for file in files]
    if isinstance(request.masks, str | Path) and Path(request.masks).is_dir():
        settings["masks"] = read_masks(Path(request.masks), data.folder, files, reader)
    known, train_names = (None, None) if request.reference is None else some_references(request.reference)
    names = reader.known_classes(data.arrays.get("labels"))
    labels = Labels.of(names, None if names is None else train_names, names=request.classes)
    rows = reader.pixels(files)
    train = None if known is None else reader.pixels(known)
    return request.task(loaded.model, rows, train, labels, **defaults)


def _from_arrays(loaded: LoadedModel, request: Request, **defaults: Any) -> Task:
    """The task on arrays."""
    model, data = loaded.model, request.data
    if is_text(data.rows):
        raise InputError(
            "the data is text and the model brings no tokenizer for it; give a folder in Hugging Face's "
            "layout, which does, or an .npz file of token ids"
        )
    rows = _as_numbers(request.drawn(data.rows, "rows"), model)
    train, train_labels = request.training()
    train = None if train is None else _as_numbers(train, model)
    if "targets" in data.arrays:
        request.settings.setdefault("targets", request.drawn(data.arrays["targets"], "targets"))
    if isinstance(model, OnnxFunction):
        model.check_rows(rows.shape[1:])
    _check_width(model, rows)
    labels = Labels.of(data.arrays.get("labels"), train_labels, class_names(model), request.classes)
    return request.task(model, rows, train, labels, **defaults)


def _check_width(model: Any, rows: Tensor) -> None:
    wanted = getattr(model, "n_features_in_", None)
    if wanted is not None and rows.dim() == 2 and rows.shape[1] != wanted:
        raise ShapeError(f"the estimator takes {wanted} columns, the data has {rows.shape[1]}")


def _as_numbers(rows: Any, model: Any) -> Tensor:
    """Rows as a tensor; integers become floats for a model that embeds no tokens."""
    tensor = rows if isinstance(rows, Tensor) else torch.as_tensor(np.array(rows))
    tokens = tensor.dim() == 2 and isinstance(model, nn.Module) and embedding_layer(model) is not None
    tokens = tokens or (isinstance(model, OnnxFunction) and "int" in model.inputs[0].type)
    if tensor.is_floating_point() or tokens:
        return tensor
    return tensor.float()


def _from_columns(loaded: LoadedModel, request: Request) -> Task:
    """The task on a table: an estimator or a function in its raw columns, a network in numbers."""
    model, reference = loaded.model, request.reference
    features = column_names(model)
    label = label_column(request.data.rows, request.labels, features)
    table = _known_columns(request.data.rows, features, label)
    train = None if reference is None else _known_columns(reference.rows, features, label)
    labels = Labels()
    if label is not None:
        values, train_values = (label_values(frame, label) for frame in (table, train))
        labels = Labels.of(values, train_values, class_names(model), request.classes)
        table = table.drop(columns=[label])
        train = None if train is None else train.drop(columns=[label], errors="ignore")
    drawn = table.iloc[request.rows.tolist()].reset_index(drop=True)
    if isinstance(model, nn.Module | OnnxFunction):
        codec = FrameCodec.of(table, train)  # of all rows: those drawn may lack a level
        encode: Callable[[pd.DataFrame], Tensor] = partial(one_hot, codec)
        space = column_space(codec)
    elif features is None and is_estimator(model) and not any(FrameCodec.of(table).categories):
        # an estimator that was fitted without column names wants none
        encode, space = _as_doubles, Space.columns(table.shape[1], [str(name) for name in table.columns])
        _check_width(model, encode(drawn))
    else:
        return request.task(model, drawn, train, labels)
    try:
        return request.task(
            model, encode(drawn), None if train is None else encode(train), labels, space=space
        )
    except ShapeError as error:
        columns = ", ".join(f"'{name}'" for name in table.columns)
        hint = (
            "" if label is not None else "; if one of them is the label, name it with --labels (labels=...)"
        )
        raise ShapeError(f"{error}. The columns are {columns}{hint}") from error


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
        warn(f"columns {spare} are left out: the model was not fitted on them")
    return frame[[*features, *([label] if label in frame.columns else [])]]


def _as_doubles(frame: pd.DataFrame) -> Tensor:
    return torch.from_numpy(frame.to_numpy(np.float64, copy=True))


def _from_words(loaded: LoadedModel, request: Request) -> Task:
    """The task of an estimator that begins with a vectoriser: a removed word is left out of the text."""
    texts, given, train, train_given = request.texts()
    labels = Labels.of(given, train_given, class_names(loaded.model), request.classes)
    split, known = ([text.split()[:MAX_WORDS] for text in each or ()] for each in (texts, train))
    empty = [row for row, words in enumerate(split) if not words]
    if empty:
        raise InputError(f"{len(empty)} texts have no word at all (first: {empty[:5]}); leave them out")
    words = sorted({word for text in (*split, *known) for word in text})
    number = {word: place for place, word in enumerate(words, 1)}
    longest = max(map(len, split))
    rows = word_rows(split, number, longest)
    function = WordFunction(loaded.model, words)
    names = [[*text, *[""] * (longest - len(text))] for text in split]
    return request.task(
        function,
        rows,
        None if train is None else word_rows(known, number, longest),
        labels,
        space=Space.tokens(longest, rows > 0, names),
        fill=Token(0),
        head=function.head,
    )


def _from_folder(loaded: LoadedModel, request: Request) -> Task:
    """The task of a text or image classifier in Hugging Face's layout."""
    model, head, reader = read_classifier(loaded.model, request.settings.pop("length", 128))
    loaded, data = replace(loaded, model=model), request.data
    request = replace(request, classes=request.classes or reader.names)
    if isinstance(reader, TextReader):
        texts, given, known, train_given = request.texts()
        rows, about = reader(texts, request.settings.pop("units", "token"))
        train = None if known is None else reader.padded(known, rows.shape[1])
        labels = Labels.of(given, train_given, names=request.classes)
        return request.task(model, rows, train, labels, head=head, **about)
    if data.kind == "images":
        return _from_images(loaded, request, reader, head=head)
    if data.kind == "table" or isinstance(data.rows, list) or is_text(data.rows):
        raise InputError("the model classifies images; give a folder of them or an array (N, channels, H, W)")
    return _from_arrays(loaded, request, head=head)


# --- models that answer probabilities -------------------------------------------------------------------


SMALLEST = 1e-12
CLOSE = 1e-3


def log_probabilities(answer: object) -> Tensor:
    """The logarithm of a model's probabilities: their softmax gives them back."""
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
    outputs, single = task.outputs, task.outputs[:, -1]
    if task.head == "multiclass":
        found = bool((outputs >= -CLOSE).all()) and bool((outputs.sum(1) - 1).abs().max() < CLOSE)
    else:
        # logits of many samples are neither all positive nor all below one
        found = task.head == "binary" and len(task) >= 8 and bool(((single >= 0) & (single <= 1)).all())
    if not found:
        return task
    warn(
        "the model answers probabilities; they are read on the scale of logits (as their logarithms), so "
        "that responses are those probabilities and not a second softmax of them"
    )
    return make(output=log_odds if task.head == "binary" else log_probabilities)
