"""Loading the task of a choice under the study's chunk plan, whole or one shard of it."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from veridical.core.settings import holds_code
from veridical.data import KnownAnswer, tasks
from veridical.data import load_task as read_task
from veridical.errors import InputError
from veridical.models.adapters import ArrayModel, FunctionModel
from veridical.study.grid import Choice
from veridical.study.resolve import imported, source_digest
from veridical.values.content_hash import content_digest
from veridical.values.task import Task


def load_task(
    choice: Choice,
    *,
    rows: int | None,
    threads: int,
    device: str | None = None,
    allow_code: bool = False,
    shard: tuple[int, int] | None = None,
) -> Task:
    """The task of a choice; `shard` is asked of functions that make one shard at a time."""
    if choice.files:
        said: dict[str, Any] = {**choice.files, **choice.settings}
        made: Any = read_task(samples=choice.samples, seed=choice.seed, allow_code=allow_code, **said)
    elif choice.code is None:
        if choice.settings:
            raise InputError(f"the embedded task '{choice.name}' has no settings {sorted(choice.settings)}")
        made = tasks.load(choice.name or "", choice.samples, choice.seed)
    else:
        made = _called(choice, imported(choice.code, allow_code), shard)
    task = made.task if isinstance(made, KnownAnswer) else made
    if not isinstance(task, Task):
        raise InputError(f"{choice.code} gave a {type(task).__name__}, not a Task")
    if choice.fill is not None:
        task = task.with_fill(choice.fill)
    if device is not None:
        task = task.to(device)
    task = task.with_plan(replace(task.predictor.plan, rows=rows, threads=threads))
    # what is unperturbed here runs in the study's chunks too
    vars(task)["reference"] = task
    # asked on the whole, so that a shard finds the same last bits whichever worker loads it
    _ = task.outputs, task.targets
    return task


def is_ranged(choice: Choice, allow_code: bool) -> bool:
    """Whether the task is made one shard at a time, by a function that takes `start` and `stop`."""
    if choice.code is None:
        return False
    names = _parameters(imported(choice.code, allow_code))
    if not {"start", "stop"} <= set(names):
        return False
    if choice.samples is None:
        raise InputError(f"{choice.code} makes shards, so the study must say how many samples there are")
    return True


def identify_task(task: Task | None, choice: Choice) -> tuple[str, bool]:
    """A digest of the task, and whether it can be trusted to change when the task does.

    By content where it is loaded whole; a task made shard by shard (None here) is known by the text and the
    arguments of its function. A bare function as model or fill has no content: the text of the module that
    made the task must stand for it, and an embedded task has none.
    """
    said: dict[str, Any] = {}
    if choice.code is not None:
        source = source_digest(choice.code.partition(":")[0])
        said = {"code": choice.code, "source": source, "settings": dict(choice.settings)}
        said |= {"samples": choice.samples, "seed": choice.seed, "fill": choice.fill}
        traceable = source is not None
    elif choice.files:
        # the content says all of a torch module or an estimator, and nothing of a function (ONNX, say)
        said = {"model file": _digest(choice.files["model"]), "arch": choice.files.get("arch")}
        traceable = True
    else:
        traceable = task is not None and not _holds_function(task)
    if task is not None:
        side = task.train_side if isinstance(task.train_side, dict) else dict(enumerate(task.train_side))
        # the content hash is about explaining; some metrics also read labels
        tensors = {"labels": task.labels, "train labels": task.train_labels}
        tensors |= {f"train side/{name}": value for name, value in side.items()}
        said["content"] = content_digest(nn.Identity(), tensors, task.content_hash())
    return content_digest(nn.Identity(), {}, sorted(said.items())), traceable


def _digest(path: str) -> str | None:
    """What the bytes of a model's file come to; None for a folder, whose weights the content tells."""
    if not Path(path).is_file():
        return None
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def _holds_function(task: Task) -> bool:
    model = task.predictor.model
    bare = isinstance(model, FunctionModel) or (isinstance(model, ArrayModel) and model.estimator is None)
    return bare or holds_code(task.fill)


def _called(choice: Choice, function: Any, shard: tuple[int, int] | None) -> Any:
    if not callable(function):
        raise InputError(f"{choice.code} is a {type(function).__name__}, not a function that returns a Task")
    names = _parameters(function)
    offered: dict[str, Any] = {"samples": choice.samples, "seed": choice.seed}
    if shard is not None:
        offered |= {"start": shard[0], "stop": shard[1]}
    extra = {name: value for name, value in offered.items() if name in names and value is not None}
    made = function(**{**extra, **choice.settings})
    task = made.task if isinstance(made, KnownAnswer) else made
    if isinstance(task, Task) and shard is None and choice.samples is not None and "samples" not in names:
        return task[: choice.samples]
    return task


def _parameters(function: Any) -> Mapping[str, Any]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}
