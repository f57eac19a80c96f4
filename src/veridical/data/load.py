"""A task from a model and data on disk: what `--model` and `--data` of the command line mean."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from veridical.data.files import read_examples, some_rows
from veridical.data.huggingface import ImageReader, classifier, from_huggingface, output_names
from veridical.data.images import (
    image_space,
    mask_reader,
    read_images,
    read_masks,
    reference_images,
    rule_for,
)
from veridical.data.model_files import Kind, LoadedModel, checked_device, load_model
from veridical.data.onnx_models import OnnxFunction
from veridical.data.prompt_files import from_prompts, is_language_model
from veridical.data.request import Labels, Request, is_text, on_logit_scale
from veridical.data.tables import from_table, label_column
from veridical.data.texts import all_texts, from_words, takes_texts
from veridical.errors import InputError, ShapeError, VeridicalWarning
from veridical.models.embeddings import embedding_layer
from veridical.models.estimators import class_names, column_names, is_estimator, one_target
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

    `model` is a folder in Hugging Face's layout (or `hf:owner/name` to fetch one from the hub), a file of
    weights with `arch` (`module:function`, which builds the network), a scikit-learn estimator in a
    .joblib file, an .onnx file, or a model in memory. Code runs only with `allow_code`: an architecture is
    code, and a joblib file can contain any. A folder or GGUF file of a causal language model takes prompts:
    a .jsonl file with the fields prompt and, if wanted, question, answer, foil, units and id; `units` and
    `off` are those of `vd.models.Generation`.

    `data` is a .npz, .npy or .safetensors file of arrays, a .csv, .tsv, .parquet or .jsonl table, a folder
    of images (one subfolder per class), or the same in memory; `train` holds reference rows in any of these.
    `labels` names the column or array of true classes, `text` the column of texts; where one column alone
    can be meant they may be left out. `classes` names the model's outputs in their order. `masks` are
    object masks: an array, a file of one, or a folder of images named like those of `data`. `samples`
    keeps a random part of the data, the same for the same `seed`. `image` says how images are read (the
    arguments of `veridical.data.images.read_image`) for a model that does not. Further settings go to `Task`.

    >>> rows = torch.eye(3)
    >>> load_task(torch.nn.Linear(3, 2), rows, name="mine")
    Task: 3 samples of (3,), 2 outputs (multiclass), 3 column features, on cpu
    """
    if samples is not None and samples < 1:
        raise InputError(f"a task needs at least one sample, got samples={samples}")
    place = checked_device(device)
    if is_language_model(model):
        given = {
            "train": train,
            "labels": labels,
            "masks": masks,
            "text": text,
            "classes": classes,
            "image": image,
        }
        return from_prompts(
            model, data, samples, seed, place, {**given, "name": name, "arch": arch, **settings}
        )
    found = read_examples(data, labels)
    reference = None if train is None else read_examples(train, labels, reference=True)
    loaded = load_model(model, arch=arch, kind=kind, allow_code=allow_code, device=place)
    if isinstance(settings.get("output"), int):
        loaded = replace(loaded, model=one_target(loaded.model, settings.pop("output")))
    rows = some_rows(found.count, samples, seed)
    given = {"name": name or f"{loaded.name} on {found.name}", "ids": rows, **settings}
    asked = Request(found, reference, rows, labels, text, classes, image, masks, given)
    if loaded.kind == "huggingface":
        return _from_folder(loaded, asked, place)
    by_data = {"images": _from_images, "table": _from_columns, "arrays": _from_arrays}
    build = from_words if takes_texts(loaded.model) else by_data[found.kind]
    task = build(loaded, asked)
    return task if place is None else task.to(place)


# --- arrays, tables and images --------------------------------------------------------------------------

NO_TOKENIZER = (
    "the data is text and the model brings no tokenizer for it; give a folder in Hugging Face's layout, "
    "which does, or an .npz file of token ids"
)


def _from_images(loaded: LoadedModel, asked: Request) -> Task:
    """The task on a folder of images, prepared as the model wants them."""
    data = asked.data
    if is_estimator(loaded.model):
        raise InputError("a scikit-learn estimator takes rows of numbers; write the images to an .npz file")
    assert data.folder is not None
    rule = rule_for(loaded, asked.image)
    settings = dict(asked.settings)
    files = asked.drawn(data.rows, "images")
    settings["ids"] = [file.relative_to(data.folder).as_posix() for file in files]
    rows = read_images(files, rule)
    settings.setdefault("space", image_space(rows.shape[1:]))
    if asked.masks is not None:
        settings["masks"] = read_masks(asked.masks, data.folder, files, mask_reader(rule))
    names, train = None, None
    if asked.reference is not None:
        kept, names = reference_images(asked.reference)
        train = read_images(kept, rule)
    labels = Labels() if data.classes is None else asked.numbers(data.classes, names)
    return _made(loaded, asked, rows, train, labels, settings)


def _from_arrays(loaded: LoadedModel, asked: Request) -> Task:
    """The task on arrays."""
    data = asked.data
    if is_text(data.rows):
        raise InputError(NO_TOKENIZER)
    settings = dict(asked.settings)
    truth, train, train_truth = (data.arrays.get(name) for name in ("labels", "train", "train_labels"))
    if asked.reference is not None:
        train, train_truth = asked.reference.rows, asked.reference.arrays.get("labels")
    rows = as_numbers(asked.drawn(data.rows, "rows"), loaded.model)
    masks = asked.object_masks()
    if masks is not None:
        settings["masks"] = masks
    if "targets" in data.arrays:
        settings.setdefault("targets", asked.drawn(data.arrays["targets"], "targets"))
    labels = asked.numbers(truth, train_truth, class_names(loaded.model))
    if train is not None:
        train = as_numbers(train, loaded.model)
    return _made(loaded, asked, rows, train, labels, settings)


def as_numbers(rows: Any, model: Any) -> Tensor:
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


def _from_columns(loaded: LoadedModel, asked: Request) -> Task:
    """The task on a table: an estimator in its raw columns, any other model in numbers."""
    model, frame = loaded.model, asked.data.rows
    features = column_names(model)
    label = label_column(frame, asked.labels, features)
    frame = _known_columns(frame, features, label)
    train = None if asked.reference is None else _known_columns(asked.reference.rows, features, label)
    if label is not None and frame[label].isna().any():
        raise InputError(f"the label column '{label}' has missing values; leave those rows out")
    mine, theirs = (None if f is None or label not in f else f[label].to_numpy() for f in (frame, train))
    labels = Labels() if label is None else asked.numbers(mine, theirs, class_names(model))
    table, reference = (
        None if f is None else f.drop(columns=[label], errors="ignore") for f in (frame, train)
    )
    assert table is not None
    drawn = table.iloc[asked.rows.tolist()].reset_index(drop=True)
    settings = dict(asked.settings)
    if is_estimator(model) and features is None and not _categories(table):
        # an estimator that was fitted without column names wants none
        names = [str(name) for name in table.columns]
        settings.setdefault("space", Space.columns(len(names), names))
        rows = torch.from_numpy(drawn.to_numpy(np.float64, copy=True))
        known = None if reference is None else torch.from_numpy(reference.to_numpy(np.float64, copy=True))
        return _made(loaded, asked, rows, known, labels, settings)
    if labels.fractions and not is_estimator(model):
        settings.setdefault("head", "regression")
    if not is_estimator(model):
        drawn, reference = _with_all_levels(table, drawn, reference)
    make = partial(
        from_table,
        model,
        drawn,
        train=reference,
        train_labels=labels.theirs,
        labels=None if labels.mine is None else asked.drawn(labels.mine, "labels"),
        masks=asked.object_masks(),
        one_hot=True if isinstance(model, OnnxFunction) else None,
        **settings,
    )
    try:
        task = make() if is_estimator(model) else on_logit_scale(make)
    except ShapeError as error:
        columns = ", ".join(f"'{name}'" for name in table.columns)
        hint = (
            "" if label is not None else "; if one of them is the label, name it with --labels (labels=...)"
        )
        raise ShapeError(f"{error}. The columns are {columns}{hint}") from error
    return labels.checked(task)


def _made(
    loaded: LoadedModel,
    asked: Request,
    rows: Tensor,
    train: Tensor | None,
    labels: Labels,
    settings: dict[str, Any],
) -> Task:
    """The task on rows of numbers."""
    model = loaded.model
    if isinstance(model, OnnxFunction):
        model.check_rows(rows.shape[1:])
    wanted = getattr(model, "n_features_in_", None)
    if wanted is not None and rows.dim() == 2 and rows.shape[1] != wanted:
        raise ShapeError(f"the estimator takes {wanted} columns, the data has {rows.shape[1]}")
    if labels.mine is not None:
        settings["labels"] = asked.drawn(labels.mine, "labels")
    if labels.fractions and not is_estimator(model):
        settings.setdefault("head", "regression")
    if train is not None:
        settings["train"] = train if labels.theirs is None else (train, labels.theirs)
    make = partial(Task, model, rows, **settings)
    return labels.checked(make() if is_estimator(model) else on_logit_scale(make))


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


# --- Hugging Face classifiers ---------------------------------------------------------------------------


def _from_folder(loaded: LoadedModel, asked: Request, device: torch.device | None) -> Task:
    """The task of a text or image classifier in Hugging Face's layout."""
    config, options, kind = classifier(loaded.model)
    settings = dict(asked.settings)
    asked_for = asked.classes or output_names(config)
    if kind == "text":
        inputs, mine, train, theirs = all_texts(asked)
    else:
        reader = ImageReader(loaded.model, config, options)
        inputs, mine, train, theirs = _pixels(asked, reader, settings)
    labels = Labels() if mine is None else _by_name(asked, mine, theirs, asked_for)
    if labels.fractions:
        settings.setdefault("head", "regression")
    reference: Any = train if train is None or labels.theirs is None else (train, labels.theirs)
    return labels.checked(
        from_huggingface(
            loaded.model,
            inputs,
            labels=None if labels.mine is None else asked.drawn(labels.mine, "labels"),
            train=reference,
            device=device,
            **settings,
        )
    )


def _by_name(asked: Request, mine: Any, theirs: Any, classes: Any) -> Labels:
    named = Request(asked.data, asked.reference, asked.rows, classes=[str(name) for name in classes])
    return named.numbers(mine, theirs)


def _pixels(asked: Request, reader: ImageReader, settings: dict[str, Any]) -> tuple[Any, Any, Any, Any]:
    """Drawn images, labels of all images, reference images and their labels."""
    data, reference = asked.data, asked.reference
    if data.kind == "arrays" and not is_text(data.rows):
        masks = asked.object_masks()
        if masks is not None:
            settings["masks"] = masks
        arrays = data.arrays
        train, theirs = arrays.get("train"), arrays.get("train_labels")
        if reference is not None:
            train, theirs = reference.rows, reference.arrays.get("labels")
        return asked.drawn(data.rows, "images"), arrays.get("labels"), train, theirs
    if data.kind != "images" or data.folder is None:
        raise InputError("the model classifies images; give a folder of them or an array (N, channels, H, W)")
    files = asked.drawn(data.rows, "images")
    settings["ids"] = [file.relative_to(data.folder).as_posix() for file in files]
    if asked.masks is not None:
        settings["masks"] = read_masks(asked.masks, data.folder, files, reader.mask)
    mine = None if data.classes is None else reader.known_classes(data.classes)
    if reference is None:
        return files, mine, None, None
    kept, names = reference_images(reference)
    theirs = None if names is None or mine is None else reader.known_classes(names)
    return files, mine, kept, theirs
