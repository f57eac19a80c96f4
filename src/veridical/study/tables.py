"""Scores as a Parquet file that any tool reads, and back: one row per sample, and JSON in its schema."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from veridical.core import files
from veridical.errors import FormatError
from veridical.models.cost import Cost
from veridical.values.scores import Curve, Direction, Scores

FORMAT = 2
KIND = "cell"
META = b"veridical"
COLUMNS = ("task", "explainer", "metric", "seed", "id", "value", "direction", "flags")
DETAIL, CURVE = "detail.", "curve"


def to_parquet(
    scores: Scores, cell: Mapping[str, Any], settings: Mapping[str, Any], address: str = ""
) -> bytes:
    """The scores of one cell; `cell` holds its labels (with its seed), `settings` what decided it.

    Columns: task, explainer, metric, seed, id, value, direction, flags (a list of reasons), and after them
    `detail.<name>` and `curve` where the metric gives them.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    count = len(scores)
    masks = {reason: mask.tolist() for reason, mask in scores.flags.items()}
    raised = [[reason for reason, mask in masks.items() if mask[i]] for i in range(count)]
    columns: dict[str, Any] = {
        **{name: pa.array([cell[name]] * count, pa.string()) for name in ("task", "explainer", "metric")},
        "seed": pa.array([cell["seed"]] * count, pa.int64()),
        "id": pa.array(scores.ids.cpu().numpy()),
        "value": pa.array(scores.values.cpu().numpy()),
        "direction": pa.array([scores.direction.value] * count, pa.string()),
        "flags": pa.array(raised, pa.list_(pa.string())),
    }
    about: dict[str, Any] = {
        **files.new_header(KIND, FORMAT, address, count),
        "metric": scores.metric,
        "explainer": scores.explainer,
        "direction": scores.direction.value,
        "flags": list(scores.flags),
        "cost": [scores.cost.forward, scores.cost.backward],
        "settings": dict(settings),
        "provenance": dict(scores.provenance),
        "details": [],
        "curve": None,
    }
    for name, value in scores.details.items():
        columns[f"{DETAIL}{name}"] = _lists(value)
        about["details"].append([name, str(value.dtype).removeprefix("torch."), list(value.shape[1:])])
    if scores.curve is not None:
        columns[CURVE] = _lists(scores.curve.y)
        line = scores.curve
        about["curve"] = [
            line.x.tolist(),
            str(line.y.dtype).removeprefix("torch."),
            line.x_label,
            line.y_label,
        ]
    table = pa.table(columns).replace_schema_metadata({META: json.dumps(about, sort_keys=True).encode()})
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return files.with_checksum(sink.getvalue())


def from_parquet(
    content: bytes, source: str = "the file", address: str | None = None, rows: int | None = None
) -> Scores:
    """Read what `to_parquet` wrote, under the address and with as many rows as it should."""
    import pyarrow.parquet as pq

    about = metadata(content, source, address, rows)
    table = pq.read_table(io.BytesIO(content))
    raised = table["flags"].to_pylist()
    flags = {reason: torch.tensor([reason in found for found in raised]) for reason in about["flags"]}
    details = {
        name: _tensor(table[f"{DETAIL}{name}"], dtype, shape) for name, dtype, shape in about["details"]
    }
    curve = None
    if about["curve"] is not None:
        x, dtype, x_label, y_label = about["curve"]
        curve = Curve(
            torch.tensor(x, dtype=torch.float64), _tensor(table[CURVE], dtype, [len(x)]), x_label, y_label
        )
    return Scores(
        torch.from_numpy(table["value"].to_numpy().copy()),
        Direction(about["direction"]),
        about["metric"],
        torch.from_numpy(table["id"].to_numpy().copy()),
        about["explainer"],
        flags,
        curve,
        details,
        Cost(*about["cost"]),
        about["provenance"],
    )


def metadata(
    content: bytes, source: str, address: str | None = None, rows: int | None = None
) -> dict[str, Any]:
    """What a file says of itself, once its digest, address and row count are found to be right."""
    import pyarrow.parquet as pq
    from pyarrow import ArrowException

    files.verify_checksum(content, source)
    try:
        found = pq.read_schema(io.BytesIO(content)).metadata or {}
    except (ArrowException, OSError) as error:
        raise FormatError(f"{source} is not a Parquet file: {error}") from error
    if META not in found:
        raise FormatError(f"{source} was not written by a study (its header is missing)")
    about = files.read_header(found[META], source, FORMAT)
    files.check_header(about, source, kind=KIND, address=address, rows=rows)
    return about


def relabelled(content: bytes, cell: Mapping[str, Any]) -> bytes:
    """The same scores under other labels."""
    about = metadata(content, "the file")
    return to_parquet(from_parquet(content), cell, about["settings"], about["address"])


def _lists(value: Tensor) -> Any:
    """One number per row, or a list of them."""
    import pyarrow as pa

    value = value.detach().cpu()
    flat = pa.array(value.reshape(-1).numpy())
    if value.dim() == 1:
        return flat
    width = value[0].numel() if len(value) else 0
    return pa.ListArray.from_arrays(pa.array([i * width for i in range(len(value) + 1)], pa.int32()), flat)


def _tensor(column: Any, dtype: str, shape: Sequence[int]) -> Tensor:
    import numpy as np
    import pyarrow as pa

    column = column.combine_chunks()
    flat = column.flatten() if pa.types.is_list(column.type) else column
    array = np.asarray(flat.to_numpy(zero_copy_only=False))
    return torch.from_numpy(array.copy()).to(getattr(torch, dtype)).reshape(len(column), *shape)
