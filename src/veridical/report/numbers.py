"""Numbers as plain data: what has no value becomes None, since JSON knows no NaN."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

DIGITS = 7
"""Significant digits kept: single precision, and files half as large."""


def plain(value: Any) -> Any:
    """Anything as JSON-able data; floats to seven digits, other things as their text.

    >>> plain({"a": (1.0, float("nan")), 2: None})
    {'a': [1.0, None], '2': None}
    """
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, Tensor):
        return plain(value.detach().cpu().tolist())
    if isinstance(value, Mapping):
        return {str(key): plain(held) for key, held in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(held) for held in value]
    return str(value)
