"""The explainer, metric or task that a choice stands for, and what identifies it in a content hash."""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn

from veridical.api import as_metric
from veridical.core.files import checksum, read_file
from veridical.core.settings import Settings, holds_code, revive
from veridical.data import KnownAnswer, tasks
from veridical.data import load_task as read_task
from veridical.data.files import ARRAY_SUFFIXES, TABLE_SUFFIXES, existing_file, read_maps
from veridical.errors import InputError
from veridical.explainers import Explainer, as_explainer
from veridical.explainers.adapters import FinishedMaps, FunctionExplainer, OfOneModel, finished
from veridical.metrics import AnyMetric
from veridical.models.adapters import ArrayModel, FunctionModel
from veridical.models.context import Context
from veridical.study.study_file import Choice
from veridical.values.content_hash import content_digest
from veridical.values.explanation import Explanation
from veridical.values.task import Task

MAP_SUFFIXES = (*ARRAY_SUFFIXES, *TABLE_SUFFIXES)
"""Names of explainers that end so are files of finished maps."""


def make_explainer(choice: Choice, allow_code: bool = False) -> Explainer:
    """The explainer of a choice: registered, a class or object of the user's, or a plain function."""
    settings = {key: revive(value) for key, value in choice.settings.items()}
    file, _, method = (choice.name or "").partition(":")
    if choice.code is None and Path(file).suffix.lower() in MAP_SUFFIXES:
        return MapsFile(path=str(Path(file).absolute()), method=method, **settings)
    if choice.code is None:
        return as_explainer(choice.name, **settings)
    found = imported(choice.code, allow_code)
    if isinstance(found, Explainer) or (isinstance(found, type) and issubclass(found, Explainer)):
        return as_explainer(found, **settings)
    if not callable(found):
        raise InputError(f"{choice.code} is a {type(found).__name__}, not an explainer or a function")
    return FunctionExplainer(functools.partial(found, **settings) if settings else found, choice.label)


@dataclass(frozen=True, eq=False)
class MapsFile(OfOneModel):
    """Finished maps in a file, in the order of the task's rows, of which each task takes its own."""

    path: str = ""
    """The file."""
    method: str = ""
    """Which of the maps in the file; empty where it holds those of one method."""
    one_model: ClassVar[str] = FinishedMaps.one_model

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.method or Path(self.path).stem

    def to_json(self) -> dict[str, Any]:
        digest = checksum(read_file(existing_file(self.path)))
        return {"name": self.name, "version": self.version, "settings": f"finished maps {digest}"}

    def rows_per_sample(self, task: Task) -> int:
        return 0

    def inapplicable_reason(self, task: Task) -> str | None:
        return None if self._is_home(task) else self.one_model

    def attribute(self, task: Task, context: Context) -> Tensor:
        found, rows = read_maps(self.path), task.ids.tolist()
        if self.method not in found and (self.method or len(found) > 1):
            file = Path(self.path).name
            raise InputError(
                f"{file} holds maps of {', '.join(found)}; say which: {file}:{next(iter(found))}"
            )
        maps = found[self.method] if self.method else next(iter(found.values()))
        maps = maps.values if isinstance(maps, Explanation) else maps
        if max(rows) >= len(maps):
            raise InputError(
                f"{Path(self.path).name} holds {len(maps)} maps, and the task has row {max(rows)}"
            )
        maps = maps.iloc[rows] if hasattr(maps, "iloc") else maps[rows]
        named = finished(maps, task)
        return task.values(maps, self.name) if named is None else named


def make_metric(choice: Choice, allow_code: bool = False) -> AnyMetric:
    """The metric of a choice: registered, or a class, object or factory of the user's."""
    settings = {key: revive(value) for key, value in choice.settings.items()}
    if choice.code is None:
        return as_metric(choice.name, **settings)
    found = imported(choice.code, allow_code)
    made = found(**settings) if callable(found) and not isinstance(found, AnyMetric) else found
    if not isinstance(made, AnyMetric):
        raise InputError(f"{choice.code} gave a {type(made).__name__}, not a metric")
    return made


def imported(path: str, allow_code: bool) -> Any:
    """What an import path names; importing runs its module, so the user must have allowed it."""
    if not allow_code:
        raise InputError(
            f"'{path}' is code, and importing runs it; allow it with --allow-code if you trust it"
        )
    module, _, attributes = path.partition(":")
    try:
        return functools.reduce(getattr, attributes.split("."), import_module(module))
    except (ImportError, AttributeError) as error:
        raise InputError(f"'{path}' cannot be imported: {error}") from error


def identify(made: Explainer | AnyMetric, choice: Choice) -> dict[str, Any]:
    """What a content hash says of an explainer or metric, the user's modules, and whether it is `cached`.

    Name, integer version and settings; for code of the user's also the text of its modules. A function is
    known by its import path and settings: as JSON it would be a name only. `cached` is False when a function
    takes part whose source cannot be found again: nothing would tell that it has changed.
    """
    modules = {type(part).__module__ for part in inside(made)}
    if choice.code is not None:
        modules.add(choice.code.partition(":")[0])
    own = sorted(module for module in modules if not module.startswith("veridical."))
    plain = not holds_code(made)
    content: dict[str, Any] = {"settings": made.to_json()} if plain else {}
    if choice.code is not None:
        content |= {"code": choice.code, "given": dict(choice.settings)}
    sources = {module: source_digest(module) for module in own}
    if own:
        content["sources"] = sources
    cached = None not in sources.values() and (plain or choice.code is not None)
    return {"content": content, "modules": own, "cached": cached}


def inside(part: Any) -> Iterator[Any]:
    """Some settings and all that lie in their fields: a metric may wrap another, which may hold a fill."""
    yield part
    for field in fields(part):
        held = getattr(part, field.name)
        for value in held if isinstance(held, tuple | list) else (held,):
            if isinstance(value, Settings):
                yield from inside(value)


def source_digest(module: str) -> str | None:
    """A digest of the text of a module, or None where it has none that can be imported again."""
    if module == "__main__":
        return None
    try:
        text = inspect.getsource(sys.modules.get(module) or import_module(module))
    except (OSError, TypeError, ImportError):
        return None
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


# --- tasks ------------------------------------------------------------------------------------------------


def load_task(
    choice: Choice,
    rows: int | None,
    threads: int,
    device: str | None = None,
    allow_code: bool = False,
) -> Task:
    """The task of a choice."""
    if choice.files:
        given: dict[str, Any] = {**choice.files, **choice.settings}
        made: Any = read_task(samples=choice.samples, seed=choice.seed, allow_code=allow_code, **given)
    elif choice.code is None:
        if choice.settings:
            raise InputError(f"the embedded task '{choice.name}' has no settings {sorted(choice.settings)}")
        made = tasks.load(choice.name or "", choice.samples, choice.seed)
    else:
        function = imported(choice.code, allow_code)
        if not callable(function):
            raise InputError(f"{choice.code} is a {type(function).__name__}, not a function of a Task")
        offered = {"samples": choice.samples, "seed": choice.seed}
        taken = {n: v for n, v in offered.items() if n in _parameters(function) and v is not None}
        made = function(**{**taken, **choice.settings})
    task = made.task if isinstance(made, KnownAnswer) else made
    if not isinstance(task, Task):
        raise InputError(f"{choice.code} gave a {type(task).__name__}, not a Task")
    if choice.samples is not None and len(task) > choice.samples:  # of a function that takes no number
        task = task[: choice.samples]
    task = task if choice.fill is None else task.with_fill(choice.fill)
    task = task if device is None else task.to(device)
    task = task.with_plan(replace(task.predictor.plan, rows=rows, threads=threads))
    # what is unperturbed here runs in the study's chunks too
    vars(task)["reference"] = task
    # evaluated on the whole, so that a shard finds the same last bits whichever worker loads it
    _ = task.outputs, task.targets
    return task


def identify_task(task: Task, choice: Choice) -> tuple[str, bool]:
    """A digest of the task, and whether it can be trusted to change when the task does.

    It is known by its content, one that a function made also by the text of its module and its arguments. A
    bare function as model or fill has no content: that text must stand for it, and an embedded task has none.
    """
    about: dict[str, Any] = {}
    traceable = True
    if choice.code is not None:
        source = source_digest(choice.code.partition(":")[0])
        about = {"code": choice.code, "source": source, "settings": dict(choice.settings)}
        about |= {"samples": choice.samples, "seed": choice.seed, "fill": choice.fill}
        traceable = source is not None
    elif choice.files:
        # the content holds all of a torch module or an estimator, and nothing of a function (ONNX, say)
        about = {"model file": _digest(choice.files["model"]), "arch": choice.files.get("arch")}
    else:
        model = task.predictor.model
        bare = isinstance(model, FunctionModel) or (isinstance(model, ArrayModel) and not model.estimator)
        traceable = not bare and not holds_code(task.fill)
    side = task.train_side if isinstance(task.train_side, dict) else dict(enumerate(task.train_side))
    # the content hash is about explaining; some metrics also read labels
    tensors = {"labels": task.labels, "train labels": task.train_labels}
    tensors |= {f"train side/{name}": value for name, value in side.items()}
    about["content"] = content_digest(nn.Identity(), tensors, task.content_hash())
    return content_digest(nn.Identity(), {}, sorted(about.items())), traceable


def _digest(path: str) -> str | None:
    """What the bytes of a model's file come to; None for a folder, whose weights the content tells."""
    if not Path(path).is_file():
        return None
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def _parameters(function: Any) -> Mapping[str, Any]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}
