"""What a metric needs estimated once from a whole task: found, made, kept as a file, and handed to shards.

Two kinds exist: the model that F-Fidelity fine-tunes, which serves every explainer, and GEF's noise path.
Both lie possibly deep inside a metric (`qge:ffid_plus` wraps one), so the metric's settings are searched.
"""

from __future__ import annotations

import shutil
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
from veridical.study.folder import PREPARED, Folder
from veridical.study.resolve import inside
from veridical.study.store import PATH_FORMAT, PATH_KIND
from veridical.values.task import Task

FINETUNED, PATH = KIND, PATH_KIND
M = TypeVar("M")


def preparations(metric: AnyMetric, seed: int) -> list[dict[str, Any]]:
    """The facts of each preparation; equal facts on one task are one preparation, whoever asks."""
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


def prepare(facts: Mapping[str, Any], metric: AnyMetric, task: Task, folder: Folder, address: str) -> None:
    """Make what a metric needs from a whole task that nothing has touched, and keep it under its address."""
    if facts["kind"] == PATH:
        for part in inside(metric):
            if isinstance(part, GEF) and _facts(part, facts["seed"]) == facts:
                part.noise_path(task, Key(facts["seed"]))
        kept = {label: path.to_json() for label, path in vars(task)["_calibrations"].items()}
        folder.write(f"{PREPARED}/{address}.json", files.pack_json(kept, PATH, PATH_FORMAT, address))
        return
    # beside the result, so that a fine-tuning that is killed goes on where it was
    beside = None if folder.local is None else folder.local / PREPARED / f"{address}.work"
    work = Path(tempfile.mkdtemp()) if beside is None else beside
    artefact = finetune(task, beta=facts["beta"], cache=work, progress=False)
    content = files.pack_tensors(KIND, artefact.tensors, artefact.header, address)
    folder.write(f"{PREPARED}/{address}.safetensors", content)
    shutil.rmtree(work, ignore_errors=True)


def equipped(metric: M, task: Task, prepared: Mapping[str, Mapping[str, Any]], folder: Folder) -> M:
    """The metric with what `prepared` (address -> facts) holds for it; noise paths go into the task."""
    for address, facts in prepared.items():
        if facts["kind"] == PATH:
            name = f"{PREPARED}/{address}.json"
            kept = files.unpack_json(folder.read(name), name, PATH, PATH_FORMAT, address)
            for label, path in kept.items():
                _lay(task, label, path)
        else:
            artefact = Finetuned(_path(folder, address))
            files.check_header(artefact.header, artefact.path, address=address)
            metric = _with_artefact(metric, facts["beta"], artefact)
    return metric


def _lay(task: Task, label: str, path: Mapping[str, Any]) -> None:
    plain: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in path.items()
    }
    task.calibrated(label, lambda: NoisePath(**plain))


def _path(folder: Folder, address: str) -> str:
    name = f"{PREPARED}/{address}.safetensors"
    if folder.local is not None:
        return str(folder.local / name)
    here = Path(_own_folder().name) / f"{address}.safetensors"
    if not here.is_file():
        Folder(here.parent).write(here.name, folder.read(name))
    return str(here)


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
