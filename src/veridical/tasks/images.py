"""Images from files: one rule for size, crop and scale; and a task from a folder of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from veridical import rng
from veridical.errors import InputError
from veridical.rng import Key
from veridical.task import Task
from veridical.tasks.packages import require

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
Channels = float | Sequence[float]


def read_image(
    path: str | Path,
    size: int | tuple[int, int],
    mean: Channels = 0.0,
    deviation: Channels = 1.0,
    channels: int = 3,
    shorter: int | None = None,
) -> Tensor:
    """Read one image as (channels, height, width): resize, cut out the centre, scale.

    Values are (x - mean) / deviation for x in [0, 1]. The shorter side becomes `shorter` first, by default
    8/7 of the crop (256 for 224), but never less than the crop.
    """
    require("PIL")
    from PIL import Image

    height, width = (size, size) if isinstance(size, int) else size
    if channels not in (1, 3):
        raise InputError(f"images are read with 1 or 3 channels, got {channels}")
    wanted = shorter or round(max(height, width) * 8 / 7)
    with Image.open(path) as file:
        image = file.convert("RGB" if channels == 3 else "L")
    scale = max(wanted / min(image.size), width / image.width, height / image.height)
    shape = (max(width, round(image.width * scale)), max(height, round(image.height * scale)))
    if shape != image.size:
        image = image.resize(shape, Image.Resampling.BICUBIC)
    left, top = (image.width - width) // 2, (image.height - height) // 2
    pixels = np.array(image.crop((left, top, left + width, top + height)), dtype=np.float32) / 255.0
    x = torch.from_numpy(pixels).reshape(height, width, channels).permute(2, 0, 1)
    return ((x - _each(mean)) / _each(deviation)).contiguous()


def _each(value: Channels) -> Tensor:
    return torch.tensor(value, dtype=torch.float32).reshape(-1, 1, 1)


def image_files(folder: str | Path) -> tuple[list[Path], list[str] | None, Tensor | None]:
    """All images of a folder in a fixed order; where they lie in subfolders, also classes and labels."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}")
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    if not files:
        raise InputError(f"{folder} holds no image ({', '.join(SUFFIXES)})")
    parents = [path.relative_to(folder).parts[:-1] for path in files]
    if not all(parents):
        return files, None, None
    classes = sorted({parts[0] for parts in parents})
    return files, classes, torch.tensor([classes.index(parts[0]) for parts in parents])


def from_image_folder(
    model: Any,
    folder: str | Path,
    *,
    size: int | tuple[int, int],
    mean: Channels = 0.0,
    deviation: Channels = 1.0,
    channels: int = 3,
    shorter: int | None = None,
    classes: Sequence[str] | None = None,
    samples: int | None = None,
    seed: int = 0,
    **settings: Any,
) -> Task:
    """A task on a folder of images; subfolders, where there are any, name the classes.

    Labels count the classes in alphabetic order, or in the order of `classes`, which must be that of the
    model's outputs. Each image is resized so that its shorter side is `shorter`, cut to `size`, and scaled
    to (x - mean) / deviation. `samples` keeps a random part of the files. Further settings go to `Task`.
    """
    folder = Path(folder)
    files, found, labels = image_files(folder)
    if classes is not None:
        if found is None or labels is None:
            raise InputError("classes= was given, but the images lie in no subfolders")
        unknown = sorted(set(found) - set(classes))
        if unknown:
            raise InputError(f"subfolders {unknown} are not among classes={list(classes)}")
        labels = torch.tensor([list(classes).index(name) for name in found])[labels]
    if samples is not None and samples < len(files):
        order = rng.permutation(Key(seed) / "image folder", torch.tensor([0]), 0, len(files))[0]
        keep = order[:samples].sort().values
        files = [files[i] for i in keep.tolist()]
        labels = None if labels is None else labels[keep]
    rows = torch.stack([read_image(path, size, mean, deviation, channels, shorter) for path in files])
    settings.setdefault("ids", [path.relative_to(folder).as_posix() for path in files])
    settings.setdefault("labels", labels)
    settings.setdefault("name", folder.name)
    return Task(model, rows, **settings)
