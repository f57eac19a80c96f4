"""Values of attention heads as plain data: one row per layer, one column per head."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from veridical.report.numbers import plain
from veridical.values.space import Space

NAME = re.compile(r"layer (\d+) head (\d+)")


def of_heads(space: Space) -> bool:
    """Whether every feature is an attention head."""
    names = space.names or ()
    return bool(names) and all(isinstance(name, str) and NAME.fullmatch(name) for name in names)


def grid(space: Space, values: Sequence[float]) -> dict[str, Any]:
    """Shares of the strongest head by layer and head, None where a layer has no such head."""
    places = [
        tuple(map(int, found.groups())) for name in space.names or () if (found := NAME.fullmatch(name))
    ]
    top = max(map(abs, values), default=0.0) or 1.0
    layers, heads = (max(axis) + 1 for axis in zip(*places, strict=True))
    rows: list[list[float | None]] = [[None] * heads for _ in range(layers)]
    for (layer, head), value in zip(places, values, strict=True):
        rows[layer][head] = value / top
    told: dict[str, Any] = plain({"grid": rows, "top": top})
    return told
