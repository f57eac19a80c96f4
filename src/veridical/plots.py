"""What all pictures share: colours, axes and a small table for notebooks. Matplotlib loads only here."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from veridical.errors import missing_extra, visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999")
"""Okabe and Ito's palette, which colour-blind readers can tell apart."""


def pyplot() -> Any:
    """Matplotlib's pyplot, or the sentence that says how to install it."""
    try:
        from matplotlib import pyplot as found
    except ImportError:
        raise missing_extra("matplotlib", "plots") from None
    return found


def axes(ax: Axes | None, width: float = 5.0, height: float = 3.2) -> Axes:
    """The axes given, or new ones."""
    if ax is not None:
        return ax
    return pyplot().subplots(figsize=(width, height), layout="constrained")[1]


def slices(x: Tensor) -> Tensor:
    """A volume (..., depth, height, width) as three of its slices side by side; an image as it is."""
    if x.dim() < 4:
        return x
    depth = x.shape[-3]
    at = sorted({depth // 4, depth // 2, depth - 1 - depth // 4})
    return torch.cat([x[..., i, :, :] for i in at], -1)


def as_image(x: Tensor) -> Tensor:
    """One input (C, H, W) as a picture (H, W) or (H, W, 3) with values in [0, 1]."""
    picture = x.detach().float().cpu()
    low, high = float(picture.min()), float(picture.max())
    picture = (picture - low) / (high - low) if high > low else picture * 0
    return picture.movedim(0, -1) if len(picture) == 3 else picture.mean(0)


def html_summary(title: str, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A small table for notebooks; everything is escaped."""

    def line(cells: Sequence[Any], tag: str) -> str:
        texts = (html.escape(visible(str(cell))) for cell in cells)
        return "<tr>" + "".join(f"<{tag}>{text}</{tag}>" for text in texts) + "</tr>"

    body = "".join(line(row, "td") for row in rows)
    return f"<p>{html.escape(visible(title))}</p><table>{line(head, 'th')}{body}</table>"
