"""Data frames as tensors and back, so that a pipeline is explained in its raw columns."""

from __future__ import annotations

import datetime
from collections.abc import Hashable
from dataclasses import dataclass
from decimal import Decimal
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from veridical.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


def is_frame(value: Any) -> bool:
    """Whether this is a pandas data frame (without importing pandas)."""
    return type(value).__name__ == "DataFrame" and hasattr(value, "columns") and hasattr(value, "iloc")


def as_pandas(value: Any) -> Any:
    """A polars frame as a pandas one, which models are evaluated on; everything else as it is."""
    if type(value).__module__.partition(".")[0] != "polars" or isinstance(value, type):
        return value
    value = value.collect() if hasattr(value, "collect") else value
    try:
        return value.to_pandas()
    except ImportError as error:
        raise InputError(f"polars gives its frames to pandas by way of pyarrow ({error})") from error


def _levels(name: Any, column: Any) -> tuple[Any, ...] | None:
    """The categories of a column in their order; None for numbers, also where they stand as objects.

    Times are refused: what it means to remove one is for the caller to say. So are complex numbers and parts
    of a row, such as lists.
    """
    import pandas as pd

    kinds = pd.api.types
    if kinds.is_numeric_dtype(column) and not (kinds.is_bool_dtype(column) or kinds.is_complex_dtype(column)):
        return None
    levels = getattr(column.dtype, "categories", None)
    if levels is not None:
        return tuple(levels)
    held = column.dropna()
    if column.dtype == object and len(held) and all(map(_is_number, held)):
        return None
    times = (datetime.date, datetime.time, datetime.timedelta, np.datetime64, np.timedelta64, pd.Period)
    refused = (*times, complex, np.complexfloating)
    odd = next(
        (value for value in held if isinstance(value, refused) or not isinstance(value, Hashable)), None
    )
    if odd is not None:
        raise InputError(
            f"column '{name}' holds a {type(odd).__name__} ({odd!r:.40}), which is neither a number nor a "
            "category; give columns of numbers instead, such as df['month'] = df['when'].dt.month"
        )
    return tuple(sorted(held.unique().tolist(), key=repr))


def _is_number(value: Any) -> bool:
    return isinstance(value, Real | Decimal) and not isinstance(value, bool | np.bool_)


@dataclass(frozen=True)
class FrameCodec:
    """Numbers stay numbers; categories become their index, which is a label here and never a quantity."""

    columns: tuple[Any, ...]
    categories: tuple[tuple[Any, ...] | None, ...]
    dtypes: tuple[Any, ...]

    @classmethod
    def of(cls, *frames: pd.DataFrame | None) -> FrameCodec:
        """Learn the columns from one or more frames with the same columns."""
        import pandas as pd

        given = [frame for frame in frames if frame is not None]
        first = given[0]
        for frame in given:
            repeated = frame.columns[frame.columns.duplicated()].tolist()
            if repeated:
                raise InputError(
                    f"several columns are called {repeated[0]!r}; give each column a name of its own"
                )
            if set(frame.columns) != set(first.columns):
                raise InputError(
                    f"train has columns {list(frame.columns)}, inputs have {list(first.columns)}"
                )
        whole = pd.concat(given, ignore_index=True) if len(given) > 1 else first
        categories = tuple(_levels(name, whole[name]) for name in first.columns)
        for name, levels in zip(first.columns, categories, strict=True):
            if levels and any(_is_number(one) for one in levels) and not all(map(_is_number, levels)):
                raise InputError(
                    f"column '{name}' mixes numbers and others ({levels[0]!r:.40}); make it one kind"
                )
        return cls(tuple(first.columns), categories, tuple(first.dtypes))

    def encode(self, frame: pd.DataFrame) -> Tensor:
        """A float64 tensor (rows, columns)."""
        out = np.empty((len(frame), len(self.columns)))
        for i, (name, levels) in enumerate(zip(self.columns, self.categories, strict=True)):
            if levels is None:
                out[:, i] = frame[name].to_numpy(dtype=np.float64, na_value=np.nan)
            else:
                codes = {level: float(code) for code, level in enumerate(levels)}
                out[:, i] = [codes.get(value, np.nan) for value in frame[name]]
                foreign = frame[name][np.isnan(out[:, i]) & frame[name].notna().to_numpy()]
                if len(foreign):
                    raise InputError(f"column '{name}' has the level {foreign.iloc[0]!r}, unknown before")
        return torch.from_numpy(out)

    def decode(self, rows: Tensor) -> pd.DataFrame:
        """The data frame these rows stand for, with the dtypes it came with."""
        import pandas as pd

        values = rows.detach().cpu().numpy()
        data: dict[Any, Any] = {}
        for i, (name, levels, dtype) in enumerate(
            zip(self.columns, self.categories, self.dtypes, strict=True)
        ):
            if levels is None:
                # a filled integer column may hold fractions, which its dtype could not
                data[name] = values[:, i].astype(np.float64)
            else:
                codes = values[:, i].round().clip(0, len(levels) - 1)
                picked = [None if code != code else levels[int(code)] for code in codes]
                if isinstance(dtype, pd.CategoricalDtype):
                    dtype = pd.CategoricalDtype(list(levels), dtype.ordered)
                elif pd.api.types.is_bool_dtype(dtype) and None in picked:
                    dtype = object
                data[name] = pd.Series(picked, dtype=dtype)
        return pd.DataFrame(data)
