"""A task from a model and data on disk: what `--model` and `--data` of the command line mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from veridical.data.build import from_arrays, from_columns, from_images
from veridical.data.classifiers import from_folder
from veridical.data.examples import read_examples, some_rows
from veridical.data.models import Kind, checked_device, load_model
from veridical.data.prompts import from_prompts, is_language_model
from veridical.data.request import Request
from veridical.data.words import from_words, takes_texts
from veridical.errors import InputError
from veridical.models.estimators import one_target
from veridical.values.task import Task


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
    arguments of `vd.tasks.images.read_image`) for a model that does not. Further settings go to `Task`.

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
        return from_folder(loaded, asked, place)
    by_data = {"images": from_images, "table": from_columns, "arrays": from_arrays}
    build = from_words if takes_texts(loaded.model) else by_data[found.kind]
    task = build(loaded, asked)
    return task if place is None else task.to(place)
