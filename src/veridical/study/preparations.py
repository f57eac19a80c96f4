"""What a metric needs estimated once from a whole task: found, made as a file, and handed to shards.

Two kinds exist: the model that F-Fidelity fine-tunes, which serves every explainer, and GEF's noise path.
Both lie possibly deep inside a metric (`qge:ffid_plus` wraps one), so the metric's settings are searched.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from veridical.core import files
from veridical.core.key import Key
from veridical.fidelity import FFid, finetune
from veridical.fidelity.artefact import KIND, Finetuned
from veridical.gef import GEF
from veridical.gef.noise_path import NoisePath
from veridical.metrics import AnyMetric
from veridical.study.resolve import inside
from veridical.values.task import Task

FINETUNED, PATH = KIND, "noise path"
M = TypeVar("M")


def preparations(metric: AnyMetric, seed: int) -> list[dict[str, Any]]:
    """The facts of each preparation; equal facts on one task are one preparation, whoever needs it."""
    found: list[dict[str, Any]] = []
    for part in inside(metric):
        facts = _facts(part, seed)
        if facts is not None and facts not in found:
            found.append(facts)
    return found


def _facts(part: Any, seed: int) -> dict[str, Any] | None:
    if isinstance(part, FFid) and part.finetuned is None:
        return {"kind": FINETUNED, "version": part.version, "beta": part.beta}
    if isinstance(part, GEF) and isinstance(part.path, str):
        about = {"levels": part.levels, "rule": part.path, "perturb": part.perturb}
        return {"kind": PATH, "version": part.version, "seed": seed, **about}
    return None


def prepare(facts: Mapping[str, Any], metric: AnyMetric, task: Task, hash: str) -> bytes:
    """Make what a metric needs from a whole task that nothing has touched, as the content of a file."""
    if facts["kind"] == PATH:
        for part in inside(metric):
            if isinstance(part, GEF) and _facts(part, facts["seed"]) == facts:
                part.noise_path(task, Key(facts["seed"]))
        kept = {label: path.to_json() for label, path in task.estimates.items()}
        return files.pack_tensors(PATH, {}, {"data": kept}, hash)
    with tempfile.TemporaryDirectory(prefix="veridical-") as folder:
        artefact = finetune(task, beta=facts["beta"], cache=folder, progress=False)
        return files.pack_tensors(KIND, artefact.tensors, artefact.header, hash)


def equipped(metric: M, task: Task, hash: str, facts: Mapping[str, Any], source: Path | bytes) -> M:
    """The metric with what was prepared for it; a noise path goes into the task."""
    if facts["kind"] == PATH:
        content = source if isinstance(source, bytes) else source.read_bytes()
        header = files.unpack_tensors(content, PATH, hash, hash)[1]
        with files.understood(hash):
            for label, path in header["data"].items():
                plain: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in path.items()}
                task.estimates.setdefault(label, NoisePath(**plain))
        return metric
    artefact = Finetuned(str(_here(source, hash)))
    files.check_header(artefact.header, artefact.path, content_hash=hash)
    return _with_artefact(metric, facts["beta"], artefact)


def _here(source: Path | bytes, hash: str) -> Path:
    """A file of this machine with that content."""
    if isinstance(source, Path):
        return source
    path = Path(_own_folder().name) / f"{hash}.safetensors"
    return path if path.is_file() else files.write_file(path, source)


@cache
def _own_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder of this process alone: in one that others know, somebody could lay a model of theirs."""
    return tempfile.TemporaryDirectory(prefix="veridical-")


def _with_artefact(part: M, beta: float, artefact: Finetuned) -> M:
    if isinstance(part, FFid):
        return replace(part, finetuned=artefact) if part.finetuned is None and part.beta == beta else part
    if not is_dataclass(part) or isinstance(part, type):
        return part
    inner = {field.name: getattr(part, field.name) for field in fields(part) if field.init}
    changed = {name: _with_artefact(value, beta, artefact) for name, value in inner.items()}
    return replace(part, **{name: value for name, value in changed.items() if value is not inner[name]})
