"""Images from files: one rule for size, crop and scale; object masks; and a task from a folder of images."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from veridical.core.files import check_limit
from veridical.data.files import IMAGE_SUFFIXES, Examples, require, some_rows
from veridical.data.model_files import LoadedModel
from veridical.errors import FormatError, InputError, VeridicalError, warn

if TYPE_CHECKING:
    from PIL.Image import Image

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
                check_limit("image_pixels", file.width * file.height, f"the image {path.name}")
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
        check_limit("image_pixels", shape[0] * shape[1], f"the image {Path(path).name}, scaled to {shape},")
        image = image.resize(shape, resample)
    left, top = (image.width - width) // 2, (image.height - height) // 2
    pixels = np.array(image.crop((left, top, left + width, top + height)), dtype=np.float32) / 255.0
    x = torch.from_numpy(pixels).reshape(height, width, channels).permute(2, 0, 1)
    return ((x - _each(mean)) / _each(deviation)).contiguous()


def _sides(size: Any) -> tuple[int, int]:
    sides = (size, size) if isinstance(size, int) else tuple(size) if isinstance(size, list | tuple) else ()
    if len(sides) != 2 or not all(isinstance(n, int) and n > 0 for n in sides):
        raise InputError(f"the size of images is a positive number or (height, width), got {size!r}")
    check_limit("image_pixels", sides[0] * sides[1], f"an image of {sides[0]} x {sides[1]}")
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


# --- readers of a model's images ------------------------------------------------------------------------

RULE_FILE = "preprocessor_config.json"
MAX_REFERENCES = 1024
"""Reference images that are kept in memory: some 600 MB at 224 x 224."""


class ImageReader:
    """Image files as one model's inputs, by the arguments of `read_image`."""

    def __init__(self, rule: dict[str, Any]) -> None:
        self.rule = rule

    def pixels(self, files: Sequence[Path]) -> Tensor:
        """These images, prepared for the model."""
        return torch.stack([read_image(file, **self.rule) for file in files])

    def mask(self, file: Path) -> Tensor:
        """The object mask of an image, cut as images are: bright is the object."""
        geometry = {n: self.rule[n] for n in ("size", "shorter", "squash", "truncate") if n in self.rule}
        return read_image(file, **geometry, channels=1, resample=0)[0] > 0.5

    def known_classes(self, names: list[str] | None) -> list[str] | None:
        """The subfolders of images where those are classes of the model."""
        return names


def rule_for(model: LoadedModel, given: dict[str, Any] | None) -> ImageReader:
    """How this model's images are read: as given, as a file beside it says, or as an ONNX model declares."""
    if given is not None:
        if "size" not in given:
            raise InputError("image= needs at least the size, such as {'size': 224}")
        return ImageReader(given)
    beside = None if model.path is None else model.path.parent / RULE_FILE
    if beside is not None and beside.is_file():
        return ImageReader(image_rule(beside))
    shape: Sequence[Any] = model.model.inputs[0].shape if model.kind == "onnx" else ()
    if len(shape) == 4 and all(isinstance(n, int) for n in shape[1:]) and shape[1] in (1, 3):
        warn(
            f"images are given to the model as values from 0 to 1; if it wants others, put a {RULE_FILE} "
            "beside it"
        )
        return ImageReader({"size": (shape[2], shape[3]), "channels": shape[1]})
    raise InputError(
        "the model does not say how large its images are and how they are scaled: put a "
        f"{RULE_FILE} beside it (size, image_mean, image_std), or give image={{'size': 224, 'mean': ..., "
        "'deviation': ...}"
    )


def read_masks(masks: Path, folder: Path, files: Sequence[Path], reader: ImageReader) -> Tensor:
    """Object masks from images of the same names in another folder."""
    found = []
    for file in files:
        place = masks / file.relative_to(folder)
        names = [place.with_suffix(suffix) for suffix in (place.suffix, *IMAGE_SUFFIXES)]
        here = next((name for name in names if name.is_file()), None)
        if here is None:
            raise InputError(f"there is no mask for {file.relative_to(folder)} in {masks}")
        found.append(reader.mask(here))
    return torch.stack(found)


def some_references(reference: Examples) -> tuple[list[Path], list[str] | None]:
    """The images of a folder of reference rows and their classes: all, or as many as memory should hold."""
    kept = some_rows(reference.count, MAX_REFERENCES, 0).tolist()
    if len(kept) < reference.count:
        warn(f"{MAX_REFERENCES} of the {reference.count} reference images are used, a fixed random choice")
    names = reference.arrays.get("labels")
    return [reference.rows[i] for i in kept], None if names is None else [names[i] for i in kept]
