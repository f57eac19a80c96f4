"""Images from files: one rule for size, crop and scale; and a task from a folder of them."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.data.packages import require
from veridical.errors import FormatError, InputError, VeridicalError
from veridical.values.bounds import refuse_more
from veridical.values.space import Space
from veridical.values.task import Task

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
MANY_PIXELS = 64 * 64
PATCHES_A_SIDE = 14
Channels = float | Sequence[float]


def open_image(path: str | Path, mode: str = "RGB") -> Image:
    """Decode one image file, unless it is larger than any photo or no image at all."""
    require("PIL")
    from PIL import Image, UnidentifiedImageError

    path = Path(path)
    try:
        with warnings.catch_warnings():
            # Pillow only warns of sizes that are refused here
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(path) as file:
                # the header alone has been read; a small file can claim a size that fills the memory
                refuse_more("image_pixels", file.width * file.height, f"the image {path.name}")
                return file.convert(mode)
    except Image.DecompressionBombError as error:
        raise InputError(f"the image {path.name} is larger than any photo: {error}") from error
    except UnidentifiedImageError as error:
        raise FormatError(f"{path.name} is not an image that can be read") from error
    except FileNotFoundError as error:
        raise InputError(f"there is no file {path}") from error
    except (OSError, SyntaxError, ValueError) as error:
        if isinstance(error, VeridicalError):
            raise
        raise FormatError(f"the image {path.name} is damaged: {error}") from error


def read_image(
    path: str | Path,
    size: int | tuple[int, int],
    mean: Channels = 0.0,
    deviation: Channels = 1.0,
    channels: int = 3,
    shorter: int | None = None,
    squash: bool = False,
    truncate: bool = False,
    resample: int = 3,
) -> Tensor:
    """Read one image as (channels, height, width): resize, cut out the centre, scale.

    Values are (x - mean) / deviation for x in [0, 1]. The shorter side becomes `shorter` first, by default
    8/7 of the crop (256 for 224), but never less than the crop; `squash` resizes to the crop itself and
    cuts nothing off. The longer side is rounded, or with `truncate` rounded down, as torchvision and
    transformers do. `resample` is Pillow's number of the filter (3: bicubic).
    """
    height, width = _sides(size)
    if channels not in (1, 3):
        raise InputError(f"images are read with 1 or 3 channels, got {channels}")
    image = open_image(path, "RGB" if channels == 3 else "L")
    wanted = shorter or round(max(height, width) * 8 / 7)
    scale = max(wanted / min(image.size), width / image.width, height / image.height)
    # a side that scales to a whole number must not fall below it by a last bit
    whole = (lambda side: int(side + 1e-6)) if truncate else round
    shape = (max(width, whole(image.width * scale)), max(height, whole(image.height * scale)))
    if squash:
        shape = (width, height)
    if shape != image.size:
        refuse_more("image_pixels", shape[0] * shape[1], f"the image {Path(path).name}, scaled to {shape},")
        image = image.resize(shape, resample)
    left, top = (image.width - width) // 2, (image.height - height) // 2
    pixels = np.array(image.crop((left, top, left + width, top + height)), dtype=np.float32) / 255.0
    x = torch.from_numpy(pixels).reshape(height, width, channels).permute(2, 0, 1)
    return ((x - _each(mean)) / _each(deviation)).contiguous()


def _sides(size: Any) -> tuple[int, int]:
    sides = (size, size) if isinstance(size, int) else tuple(size) if isinstance(size, list | tuple) else ()
    if len(sides) != 2 or not all(isinstance(n, int) and n > 0 for n in sides):
        raise InputError(f"the size of images is a positive number or (height, width), got {size!r}")
    refuse_more("image_pixels", sides[0] * sides[1], f"an image of {sides[0]} x {sides[1]}")
    return sides[0], sides[1]


def _each(value: Channels) -> Tensor:
    return torch.tensor(value, dtype=torch.float32).reshape(-1, 1, 1)


def image_rule(path: Path) -> dict[str, Any]:
    """What `read_image` needs, as a preprocessor_config.json in Hugging Face's layout states it."""
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        size, crop = facts.get("size", 224), facts.get("crop_size")
        cut = crop is not None and facts.get("do_center_crop", True)
        shorter = size.get("shortest_edge") if isinstance(size, dict) else size if cut else None
        if shorter is not None and "crop_pct" in facts:
            size, shorter = shorter, int(shorter / facts["crop_pct"])
        elif cut:
            size = crop
        if isinstance(size, dict):
            size = (size["height"], size["width"]) if "height" in size else size["shortest_edge"]
        scale = 255.0 * (facts.get("rescale_factor", 1 / 255) if facts.get("do_rescale", True) else 1.0)
        scaled = facts.get("do_normalize", True)
        mean = facts.get("image_mean", 0.5) if scaled else 0.0
        deviation = facts.get("image_std", 0.5) if scaled else 1.0
        return {
            "size": size,
            "mean": (np.asarray(mean) / scale).tolist(),
            "deviation": (np.asarray(deviation) / scale).tolist(),
            "channels": 1 if isinstance(mean, list) and len(mean) == 1 else 3,
            "shorter": shorter,
            "squash": shorter is None,
            "truncate": True,
            "resample": facts.get("resample", 2),
        }
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError) as error:
        raise FormatError(f"{path} does not say how images are prepared: {error!r}") from error


def image_space(shape: Sequence[int]) -> Space:
    """Pixels, or about 14 patches per side where there are many: one pixel of a photo decides nothing."""
    height, width = shape[-2:]
    if height * width <= MANY_PIXELS:
        return Space.pixels(shape)
    return Space.patches(shape, (-(-height // PATCHES_A_SIDE), -(-width // PATCHES_A_SIDE)))


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
        order = keyed.permutation(Key(seed) / "image folder", torch.tensor([0]), 0, len(files))[0]
        keep = order[:samples].sort().values
        files = [files[i] for i in keep.tolist()]
        labels = None if labels is None else labels[keep]
    rows = torch.stack([read_image(path, size, mean, deviation, channels, shorter) for path in files])
    settings.setdefault("ids", [path.relative_to(folder).as_posix() for path in files])
    settings.setdefault("labels", labels)
    settings.setdefault("name", folder.name)
    return Task(model, rows, **settings)
