"""Hugging Face classifiers on the user's data."""

from __future__ import annotations

from typing import Any

import torch

from veridical.data.huggingface import ImageReader, class_names, classifier, from_huggingface
from veridical.data.models import LoadedModel
from veridical.data.pictures import read_masks, reference_images
from veridical.data.request import Labels, Request, is_text
from veridical.data.texts import all_texts
from veridical.errors import InputError
from veridical.values.task import Task


def from_folder(loaded: LoadedModel, asked: Request, device: torch.device | None) -> Task:
    """The task of a text or image classifier in Hugging Face's layout."""
    config, options, kind = classifier(loaded.model)
    settings = dict(asked.settings)
    asked_for = asked.classes or class_names(config)
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
