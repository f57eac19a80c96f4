"""Data frames as tensors and back, so that a pipeline is explained in its raw columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from veridical.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


def _refuse_times(name: Any, column: Any) -> None:
    """A time is no number and no category: what it means to remove one is for the caller to say."""
    import pandas as pd

    kinds = (pd.api.types.is_datetime64_any_dtype, pd.api.types.is_timedelta64_dtype)
    if any(is_kind(column) for is_kind in kinds) or isinstance(column.dtype, pd.PeriodDtype):
        raise InputError(
            f"column '{name}' holds times ({column.dtype}), which are neither numbers nor categories; give "
            "the model columns such as df['month'] = df['when'].dt.month, or days since a first day"
        )


def is_frame(value: Any) -> bool:
    """Whether this is a pandas data frame (without importing pandas)."""
    return type(value).__name__ == "DataFrame" and hasattr(value, "columns") and hasattr(value, "iloc")


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
        for frame in given[1:]:
            if list(frame.columns) != list(first.columns):
                raise InputError(
                    f"train has columns {list(frame.columns)}, inputs have {list(first.columns)}"
                )
        whole = pd.concat(given, ignore_index=True) if len(given) > 1 else first
        categories: list[tuple[Any, ...] | None] = []
        for name in first.columns:
            column = whole[name]
            _refuse_times(name, column)
            if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column):
                categories.append(None)
            else:
                levels = getattr(column.dtype, "categories", None)
                if levels is None:
                    levels = sorted(column.dropna().unique().tolist(), key=repr)
                categories.append(tuple(levels))
        return cls(tuple(first.columns), tuple(categories), tuple(first.dtypes))

    def encode(self, frame: pd.DataFrame) -> Tensor:
        """A float64 tensor (rows, columns)."""
        out = np.empty((len(frame), len(self.columns)))
        for i, (name, levels) in enumerate(zip(frame.columns, self.categories, strict=True)):
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
