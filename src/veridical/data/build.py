"""Tasks of torch modules, estimators and ONNX models on arrays, tables and folders of images."""

from __future__ import annotations

import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from veridical.data.columns import label_column
from veridical.data.images import image_space
from veridical.data.models import LoadedModel
from veridical.data.onnx_models import OnnxFunction
from veridical.data.pictures import mask_reader, read_images, read_masks, reference_images, rule_for
from veridical.data.request import Labels, Request, is_text
from veridical.data.scales import on_logit_scale
from veridical.data.tables import from_table
from veridical.errors import InputError, ShapeError, VeridicalWarning
from veridical.models.embeddings import embedding_layer
from veridical.models.estimators import class_names, column_names, is_estimator
from veridical.values.space import Space
from veridical.values.task import Task

if TYPE_CHECKING:
    import pandas as pd

NO_TOKENIZER = (
    "the data is text and the model brings no tokenizer for it; give a folder in Hugging Face's layout, "
    "which does, or an .npz file of token ids"
)


def from_images(loaded: LoadedModel, asked: Request) -> Task:
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


def from_arrays(loaded: LoadedModel, asked: Request) -> Task:
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


def from_columns(loaded: LoadedModel, asked: Request) -> Task:
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
