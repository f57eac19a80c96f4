"""The files of a study: cells as Parquet, which any tool reads, maps, preparations, and what is wrong.

A cell has one row per sample, and JSON in its schema: settings, cost, provenance.
"""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from veridical.core import files
from veridical.errors import FormatError
from veridical.jobs import Store
from veridical.models.cost import Cost
from veridical.study.plan import StudyJob, StudyPlan, read_plan
from veridical.study.preparations import PATH, check_preparation
from veridical.values.explanation import Explanation
from veridical.values.scores import Curve, Direction, Scores

FORMAT = 3
KIND = "cell"
META = b"veridical"
COLUMNS = ("task", "explainer", "metric", "seed", "id", "value", "direction", "flags")
DETAIL, CURVE = "detail.", "curve"
CELLS, EXPLANATIONS, PREPARED, FAILURES = "cells", "explanations", "prepared", "failures"
FAILURE, FAILURE_FORMAT = "failure", 2


# --- where files lie, and whether they are sound ----------------------------------------------------------


def place(job: StudyJob) -> str:
    """The name of the file that a job leaves."""
    if job.kind == "score":
        return f"{CELLS}/{job.hash}.parquet"
    if job.kind == "explain":
        return f"{EXPLANATIONS}/{job.hash}.safetensors"
    return f"{PREPARED}/{job.hash}.{'json' if job.facts['kind'] == PATH else 'safetensors'}"


def problem(store: Store, job: StudyJob) -> str | None:
    """What is wrong with the file of a job; None if it is sound. FileNotFoundError where there is none."""
    source, content = f"{store.url}/{place(job)}", store.read(place(job))
    try:
        if job.kind == "score":
            metadata(content, source, job.hash, job.samples)
        elif job.kind == "explain":
            _, header = files.unpack_tensors(content, "explanation", source, job.hash)
            files.check_header(header, source, rows=job.samples)
        else:
            check_preparation(content, job.facts["kind"], source, job.hash)
    except FormatError as error:
        return str(error)
    return None


@dataclass(frozen=True)
class Verification:
    """What was found in a folder: sound files, what is wrong, what is missing, and what is foreign."""

    sound: int
    problems: tuple[str, ...] = ()
    missing: tuple[str, ...] = field(default=(), repr=False)
    foreign: tuple[str, ...] = field(default=(), repr=False)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong; cells may still be to do."""
        return not self.problems


def verify(folder: str | Path) -> Verification:
    """Check every file of a study's folder: checksum, content hash, row count, format. Nothing is computed.

    Parameters
    ----------
    folder
        A local path or an fsspec URL.

    Returns
    -------
    Verification
        What is sound, wrong, missing and foreign.
    """
    store = Store(folder)
    try:
        plan = read_plan(store)
    except FormatError as error:
        return Verification(0, (str(error),))
    problems, missing, sound, known = [], [], 1, set()
    for job in plan.jobs():
        known.add(place(job))
        try:
            found = problem(store, job)
        except FileNotFoundError:
            missing += [str(job)] * (job.kind == "score")
            continue
        sound += found is None
        problems += [f"{job}: {found}"] * (found is not None)
    there = [f"{kind}/{name}" for kind in (CELLS, EXPLANATIONS, PREPARED) for name in store.files(kind)]
    foreign = [name for name in there if name not in known]
    return Verification(sound, tuple(problems), tuple(missing), tuple(foreign))


# --- failures and labels ----------------------------------------------------------------------------------


def write_failure(store: Store, job: StudyJob, step: str, error: str, trace: str) -> None:
    """Record a cell that failed: in what step ("score", or "before" it) and why."""
    store.write_json(
        f"{FAILURES}/{job.hash}.json", _failure(job, step, error, trace), FAILURE, FAILURE_FORMAT, job.hash
    )


def read_failure(store: Store, job: StudyJob) -> dict[str, Any]:
    """What is on record of a cell that failed; a damaged record still says that it did."""
    try:
        found: dict[str, Any] = store.read_json(
            f"{FAILURES}/{job.hash}.json", FAILURE, FAILURE_FORMAT, job.hash
        )
    except FormatError as error:
        return _failure(job, "score", f"it failed, and why is lost: {error}", "")
    return found


def _failure(job: StudyJob, step: str, error: str, trace: str) -> dict[str, Any]:
    named = {name: getattr(job, name) for name in ("task", "explainer", "metric", "seed")}
    return {**named, "shard": list(job.shard), "step": step, "error": error, "traceback": trace}


def relabel(plan: StudyPlan, store: Store) -> None:
    """New names for old cells: a label decides no score, so files are rewritten, not made again."""
    try:
        old = {job.hash: str(job) for job in read_plan(store).cells()}
    except FormatError:
        return
    there = store.hashes(CELLS)
    for job in plan.cells():
        if job.hash in there and old.get(job.hash, str(job)) != str(job) and problem(store, job) is None:
            content = store.read(place(job))
            labels = {"task": job.task, "explainer": job.explainer, "metric": job.metric, "seed": job.seed}
            settings = metadata(content, place(job))["settings"]
            store.write(place(job), to_parquet(from_parquet(content), labels, settings, job.hash))


# --- maps -------------------------------------------------------------------------------------------------


def map_bytes(explanation: Explanation, hash: str) -> bytes:
    """The content of the file of an explanation."""
    with tempfile.TemporaryDirectory() as where:
        return explanation.save(Path(where) / "map.safetensors", hash).read_bytes()


def read_map(source: Path | bytes, hash: str, samples: int) -> Explanation:
    """The maps of an `explain` job; FormatError where the file is not what it left."""
    if isinstance(source, bytes):
        with tempfile.TemporaryDirectory() as where:
            path = Path(where) / "map.safetensors"
            path.write_bytes(source)
            found = Explanation.load(path, hash)
    elif not source.is_file():
        raise FileNotFoundError(source)
    else:
        found = Explanation.load(source, hash)
    files.check_header({"rows": len(found)}, str(source)[:80], rows=samples)
    return found


# --- cells ------------------------------------------------------------------------------------------------


def to_parquet(scores: Scores, cell: Mapping[str, Any], settings: Mapping[str, Any], hash: str = "") -> bytes:
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
        **files.new_header(KIND, FORMAT, hash, count),
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
    content: bytes, source: str = "the file", hash: str | None = None, rows: int | None = None
) -> Scores:
    """Read what `to_parquet` wrote, under the content hash and with as many rows as it should."""
    import pyarrow.parquet as pq

    about = metadata(content, source, hash, rows)
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


def metadata(content: bytes, source: str, hash: str | None = None, rows: int | None = None) -> dict[str, Any]:
    """What a file says of itself, once its checksum, content hash and row count are found to be right."""
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
    files.check_header(about, source, kind=KIND, content_hash=hash, rows=rows)
    return about


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
