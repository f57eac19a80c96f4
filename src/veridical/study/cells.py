"""The files of a study: cells as Parquet, which any tool reads, maps, preparations, and what is wrong.

A cell has one row per sample, and JSON in its schema: settings, cost, provenance.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from veridical.core import files
from veridical.errors import FormatError
from veridical.jobs import Store, content_hash
from veridical.models.cost import Cost
from veridical.study.plan import StudyJob, StudyPlan, read_plan
from veridical.values.explanation import Explanation
from veridical.values.scores import Curve, Direction, Scores

FORMAT = 3
KIND = "cell"
META = b"veridical"
COLUMNS = ("task", "explainer", "metric", "seed", "id", "value", "direction", "flags")
DETAIL, CURVE = "detail.", "curve"
CELLS, EXPLANATIONS, PREPARED, FAILURES = "cells", "explanations", "prepared", "failures"
FOLDERS = {"score": CELLS, "explain": EXPLANATIONS, "prepare": PREPARED}
SOURCE = "study.yaml"
FAILURE, FAILURE_FORMAT = "failure", 3


# --- where files lie, and whether they are sound ----------------------------------------------------------


def place(kind: str, hash: str) -> str:
    """The name of the file that a job of this kind leaves."""
    return f"{FOLDERS[kind]}/{hash}.{'parquet' if kind == 'score' else 'safetensors'}"


def problem(store: Store, job: StudyJob) -> str | None:
    """What is wrong with the file of a job; None if it is sound. FileNotFoundError where there is none."""
    name = place(job.kind, job.hash)
    source, content = f"{store.folder}/{name}", store.read(name)
    try:
        if job.kind == "score":
            metadata(content, source, job.hash, job.samples)
        else:
            kind = "explanation" if job.kind == "explain" else job.facts["kind"]
            _, header = files.unpack_tensors(content, kind, source, job.hash)
            files.check_header(header, source, rows=job.samples if job.kind == "explain" else None)
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
        A path.

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
    problems, missing, sound, known = source_problems(plan, store), [], 1, set()
    for job in plan.jobs():
        name = place(job.kind, job.hash)
        known.add(name)
        try:
            found = problem(store, job)
        except FileNotFoundError:
            # what is prepared serves cells that are to do; maps are made for a reader as well, if kept
            wanted = job.kind == "score" or (job.kind == "explain" and plan.keep_explanations)
            missing += [str(job)] * wanted
            continue
        sound += found is None
        problems += [f"{job}: {found}; veridical resume makes it again"] * (found is not None)
    there = [f"{folder}/{name}" for folder in FOLDERS.values() for name in store.files(folder)]
    foreign = [name for name in there if name not in known]
    return Verification(sound, tuple(problems), tuple(missing), tuple(foreign))


def source_problems(plan: StudyPlan, store: Store) -> list[str]:
    """Whether the study file in the folder is the one that the plan was made from."""
    try:
        text = store.read(SOURCE).decode("utf-8", "replace")
    except FileNotFoundError:
        return [f"{store.folder} lacks its {SOURCE}, from which the plan was made: copy it there again"]
    if content_hash(text) == plan.source:
        return []
    changed = f"{store.folder}/{SOURCE} was changed since the plan was made"
    return [f"{changed}: put it back, or veridical resume computes what it says now"]


# --- failures and labels ----------------------------------------------------------------------------------


def write_failure(store: Store, job: StudyJob, error: str, trace: str) -> None:
    """Record a cell that failed, and why."""
    found = {**job.labels, "shard": list(job.shard), "error": error, "traceback": trace}
    store.write_json(f"{FAILURES}/{job.hash}.json", found, FAILURE, FAILURE_FORMAT, job.hash)


def read_failure(store: Store, job: StudyJob) -> tuple[str, str]:
    """Error and traceback of a cell that failed; a damaged record still says that it did."""
    try:
        found = store.read_json(f"{FAILURES}/{job.hash}.json", FAILURE, FAILURE_FORMAT, job.hash)
        return found["error"], found["traceback"]
    except (FormatError, LookupError, TypeError) as error:
        return f"it failed, and why is lost: {error}", ""


def relabel(plan: StudyPlan, store: Store) -> None:
    """New names for old cells: a label decides no score, so files are rewritten, not made again."""
    try:
        old = {job.hash: job.labels for job in read_plan(store).cells()}
    except FormatError:
        return
    there = store.hashes(CELLS)
    for job in plan.cells():
        changed = job.hash in there and old.get(job.hash, job.labels) != job.labels
        if changed and problem(store, job) is None:
            content = store.read(place("score", job.hash))
            made = to_parquet(from_parquet(content), job.labels, plan.settings(job), job.hash)
            store.write(place("score", job.hash), made)


# --- maps -------------------------------------------------------------------------------------------------


def read_map(source: Path | bytes, hash: str, samples: int) -> Explanation:
    """The maps of an `explain` job; FormatError where the file is not what it left, or is gone."""
    content = source if isinstance(source, bytes) else files.read_file(source)
    found = Explanation.from_bytes(content, f"the map {hash}", hash)
    files.check_header({"rows": len(found)}, f"the map {hash}", rows=samples)
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
        about["details"].append([name, _dtype(value), list(value.shape[1:])])
    if (curve := scores.curve) is not None:
        columns[CURVE] = _lists(curve.y)
        about["curve"] = [curve.x.tolist(), _dtype(curve.y), curve.x_label, curve.y_label]
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
    with files.understood(source):
        table = pq.read_table(io.BytesIO(content))
        raised = table["flags"].to_pylist()
        flags = {reason: torch.tensor([reason in found for found in raised]) for reason in about["flags"]}
        details = {
            name: _tensor(table[DETAIL + name], dtype, shape) for name, dtype, shape in about["details"]
        }
        curve = None
        if about["curve"] is not None:
            x, dtype, *names = about["curve"]
            y = _tensor(table[CURVE], dtype, [len(x)])
            curve = Curve(torch.tensor(x, dtype=torch.float64), y, *names)
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


def _dtype(value: Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


def _lists(value: Tensor) -> Any:
    """One number per row, or a list of them."""
    import pyarrow as pa

    value = value.detach().cpu()
    return pa.array(value.numpy() if value.dim() == 1 else list(value.flatten(1).numpy()))


def _tensor(column: Any, dtype: str, shape: Sequence[int]) -> Tensor:
    rows = column.to_numpy()
    flat = np.concatenate(rows) if rows.dtype == object else rows
    return torch.from_numpy(flat.copy()).to(getattr(torch, dtype)).reshape(len(rows), *shape)
