"""Known answers that a small CNN has to learn first: colour digits of an exact size, and a watermark."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.data.cached import trained
from veridical.data.data import Data, split
from veridical.data.known import KnownAnswer, task_of
from veridical.data.networks import ColourCNN, DigitsCNN
from veridical.data.shipped import digits_data
from veridical.data.training import Recipe
from veridical.errors import InputError

SIDE = 28
COLOURS = ((1.0, 0.3, 0.3), (0.3, 1.0, 0.3), (0.4, 0.4, 1.0), (1.0, 1.0, 0.3))
BACKGROUND = 0.15
COLOUR_RECIPE = Recipe(epochs=14, rate=3e-3, batch=32, decay=1e-3)
WATERMARK_RECIPE = Recipe(epochs=3, rate=3e-3, batch=64, decay=1e-3)


def colour_digit_data(share: float) -> Data:
    """Digits as flat coloured shapes that cover exactly round(share * 784) of 28 x 28 pixels.

    The shape is the brightest part of the enlarged digit; its colour says nothing about the class. The
    background is dim noise, so that removing it changes the input but not what there is to recognise.
    """
    source = digits_data()
    count = len(source.rows)
    size = round(share * SIDE * SIDE)
    large = F.interpolate(source.rows, (SIDE, SIDE), mode="bicubic", align_corners=False).flatten(1)
    order = large.double().argsort(dim=1, descending=True, stable=True)
    shape = torch.zeros(count, SIDE * SIDE, dtype=torch.bool).scatter(1, order[:, :size], True)
    shape = shape.reshape(count, 1, SIDE, SIDE)
    ids = torch.arange(count)
    key = Key(0) / "colour digits"
    paint = torch.tensor(COLOURS)[keyed.integers(key / "colour", ids, 0, 1, len(COLOURS))[:, 0]]
    noise = keyed.uniform(key / "background", ids, 0, 3 * SIDE * SIDE).reshape(count, 3, SIDE, SIDE)
    rows = torch.where(shape, paint[:, :, None, None], BACKGROUND * noise)
    return Data(rows, source.labels, source.train, source.test, masks=shape)


def colour_digits(samples: int | None = None, seed: int = 0, share: float = 0.2) -> KnownAnswer:
    """A CNN on coloured digits whose shape covers exactly `share` of the image (F-Fidelity, appendix D.8).

    The truth says which pixels matter, not how much each does: 1 on the shape, 0 elsewhere.
    """
    if not 0.05 <= share <= 0.4:
        raise InputError(f"a digit can cover between 0.05 and 0.4 of the image, got share={share}")
    data = colour_digit_data(share)
    name = f"colour_digits_{round(100 * share)}"
    model = trained(name, ColourCNN(), data, COLOUR_RECIPE)
    task, chosen = task_of(model, data, name, samples, seed)
    assert data.masks is not None
    return KnownAnswer(
        task,
        data.masks[chosen].flatten(1).float(),
        winners=("integrated_gradients", "input_x_gradient", "occlusion"),
        losers=("random",),
        why="the background is noise that carries no class; only the shape does",
    )


colour_digits_10, colour_digits_15, colour_digits_20, colour_digits_25 = (
    partial(colour_digits, share=share) for share in (0.10, 0.15, 0.20, 0.25)
)


# --- the watermark --------------------------------------------------------------------------------------

MARK = ((6, 0), (6, 1), (7, 0), (7, 1))
"""Pixels of the watermark: the lower left corner."""


def watermark_data() -> tuple[Data, Tensor]:
    """Digits with coin-flip labels, and the watermark in the corner of those of class 1; also its mask.

    What the digit shows is independent of the label, so the watermark is all there is to learn. Only
    marked images are evaluated: where there is no mark, there is nothing to point at.
    """
    source = digits_data()
    count = len(source.rows)
    labels = keyed.integers(Key(0) / "watermark", torch.arange(count), 0, 1, 2)[:, 0]
    mark = torch.zeros(8, 8, dtype=torch.bool)
    for row, column in MARK:
        mark[row, column] = True
    clean = source.rows.masked_fill(mark, 0.0)
    rows = torch.where(mark & (labels == 1)[:, None, None, None], 1.0, clean)
    train, test = split(count, 0.3, Key(0) / "watermark")
    return Data(rows, labels, train, test[labels[test] == 1], masks=mark.expand(count, 8, 8)), mark


def clever_hans(samples: int | None, seed: int) -> KnownAnswer:
    """A CNN that looks at nothing but a watermark in the corner of the image."""
    data, mark = watermark_data()
    model = trained("clever_hans", DigitsCNN(classes=2), data, WATERMARK_RECIPE)
    task, _ = task_of(model, data, "clever_hans", samples, seed)
    return KnownAnswer(
        task,
        mark.flatten().float().expand(len(task), -1).clone(),
        winners=("integrated_gradients", "input_x_gradient", "occlusion"),
        losers=("random", "sobel"),
        why="labels are coin flips that only the watermark tells",
    )
