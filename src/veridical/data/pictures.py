"""Image files for a model that brings no image processor: size and scale from beside it, or from itself."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from veridical.data.examples import Examples, some_rows
from veridical.data.images import SUFFIXES, image_rule, read_image
from veridical.data.models import LoadedModel
from veridical.errors import InputError, VeridicalWarning

RULE_FILE = "preprocessor_config.json"
MOST_REFERENCES = 1024
"""Reference images that are kept in memory: some 600 MB at 224 x 224."""


def rule_for(model: LoadedModel, given: dict[str, Any] | None) -> dict[str, Any]:
    """How images are read for this model: as said, as a file beside it says, or as an ONNX model declares."""
    if given is not None:
        if "size" not in given:
            raise InputError("image= needs at least the size, such as {'size': 224}")
        return given
    beside = None if model.path is None else model.path.parent / RULE_FILE
    if beside is not None and beside.is_file():
        return image_rule(beside)
    if model.kind == "onnx":
        shape = model.model.inputs[0].shape
        if len(shape) == 4 and all(isinstance(n, int) for n in shape[1:]) and shape[1] in (1, 3):
            warnings.warn(
                f"images are given to the model as values from 0 to 1; if it wants others, put a {RULE_FILE} "
                "beside it",
                VeridicalWarning,
                stacklevel=4,
            )
            return {"size": (shape[2], shape[3]), "channels": shape[1]}
    raise InputError(
        "the model does not say how large its images are and how they are scaled: put a "
        f"{RULE_FILE} beside it (size, image_mean, image_std), or give image={{'size': 224, 'mean': ..., "
        "'deviation': ...}"
    )


def read_images(files: Sequence[Path], rule: dict[str, Any]) -> Tensor:
    """All of these images, prepared by one rule."""
    return torch.stack([read_image(file, **rule) for file in files])


def read_masks(
    masks: str | Path, folder: Path, files: Sequence[Path], read: Callable[[Path], Tensor]
) -> Tensor:
    """Object masks from images of the same names in another folder; `read` prepares them like the images."""
    masks = Path(masks)
    if not masks.is_dir():
        raise InputError(f"there is no folder {masks} of masks")
    found = []
    for file in files:
        place = masks / file.relative_to(folder)
        names = [place.with_suffix(suffix) for suffix in (place.suffix, *SUFFIXES)]
        here = next((name for name in names if name.is_file()), None)
        if here is None:
            raise InputError(f"there is no mask for {file.relative_to(folder)} in {masks}")
        found.append(here)
    return torch.stack([read(file) for file in found])


def mask_reader(rule: dict[str, Any]) -> Callable[[Path], Tensor]:
    """Reads a mask by the rule of the images it belongs to: bright is the object."""
    geometry = {
        name: value for name, value in rule.items() if name in ("size", "shorter", "squash", "truncate")
    }
    return lambda path: read_image(path, **geometry, channels=1, resample=0)[0] > 0.5


def reference_images(reference: Examples) -> tuple[list[Path], list[str] | None]:
    """The images of a folder of reference rows and their classes: all, or as many as memory should hold."""
    rows = some_rows(reference.count, MOST_REFERENCES, 0)
    if len(rows) < reference.count:
        warnings.warn(
            f"{MOST_REFERENCES} of the {reference.count} reference images are used, a fixed random choice",
            VeridicalWarning,
            stacklevel=5,
        )
    kept = rows.tolist()
    names = reference.classes
    return [reference.rows[i] for i in kept], None if names is None else [names[i] for i in kept]
