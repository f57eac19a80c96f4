"""Reading a study file: YAML as plain data, errors that name their line, and every point of its grid."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, ValidationError

from veridical.core import files
from veridical.core.files import check_limit
from veridical.errors import InputError
from veridical.study.spec import Entry, Frozen, StudySpec, TaskEntry

Place = Sequence[str | int]


@dataclass(frozen=True)
class StudyFile:
    """A checked study, the text it came from, and where in the text each part stands."""

    spec: StudySpec
    text: str
    source: str
    root: yaml.Node | None = None

    def error(self, place: Place, message: str) -> InputError:
        """The error about one part of the file, with its line."""
        return InputError(_said(self.source, self.root, place, message))


def read_study(study: str | Path | Mapping[str, Any] | StudySpec) -> StudyFile:
    """Accept the path of a study file, plain data, or a spec."""
    if isinstance(study, StudySpec):
        return StudyFile(study, _dumped(study.model_dump(mode="json", exclude_defaults=True)), "study")
    if isinstance(study, Mapping):
        data = dict(study)
        return StudyFile(_checked(data, "study", None), _dumped(data), "study")
    path = Path(study)
    if not path.is_file():
        raise InputError(f"there is no study file {path}")
    return parse_study(files.read_file(path), path.name)


def parse_study(text: str | bytes, source: str = "study") -> StudyFile:
    """Read the text of a study file."""
    try:
        text = text if isinstance(text, str) else text.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{source}: not written in UTF-8: {error}") from error
    check_limit("yaml_kib", len(text) / 1024, source)
    try:
        _check_size(text, source)
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        data = _Loader(text).get_single_data()
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f":{error.problem_mark.line + 1}"
        raise InputError(f"{source}{line}: not YAML: {error.problem or error}") from error
    except yaml.YAMLError as error:
        raise InputError(f"{source}: not YAML: {error}") from error
    except InputError:
        raise
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        # a number of too many digits, a date that is none, a key that is a list
        raise InputError(f"{source}: holds a value that cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise InputError(f"{source}:1: a study file is a mapping with tasks, explainers and metrics")
    return StudyFile(_checked(data, source, root), text, source, root)


class _Loader(yaml.SafeLoader):
    """YAML as plain data, in which no key is given twice: other readers keep the last without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        known: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in known:
                raise yaml.MarkedYAMLError(
                    problem=f"'{key.value}' is given twice", problem_mark=key.start_mark
                )
            known.add(str(key.value))
        return super().construct_mapping(node, deep)


def _check_size(text: str, source: str) -> None:
    """Count nesting, and values with every alias written out, before anything is made of them."""
    sizes: dict[str | None, int] = {}
    """How many values each anchor stands for."""
    inside: list[tuple[str | None, int]] = [(None, 0)]
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        where = f"{source}:{event.start_mark.line + 1}"
        if isinstance(event, yaml.CollectionStartEvent):
            inside.append((event.anchor, 1))
            check_limit("yaml_depth", len(inside) - 1, where)
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, size = inside.pop()
        elif isinstance(event, yaml.ScalarEvent):
            anchor, size = event.anchor, 1
        elif isinstance(event, yaml.AliasEvent):
            anchor, size = event.anchor, sizes.get(event.anchor, 0)
            if not size:
                raise InputError(f"{where}: an alias stands inside what it names, or names nothing")
        else:
            continue
        sizes[anchor] = size
        inside[-1] = inside[-1][0], inside[-1][1] + size
    check_limit("yaml_nodes", inside[0][1], source)


def _checked(data: Mapping[str, Any], source: str, root: yaml.Node | None) -> StudySpec:
    try:
        return StudySpec.model_validate(data)
    except ValidationError as error:
        lines = [_said(source, root, found["loc"], _message(found)) for found in error.errors()]
        raise InputError("\n".join(lines)) from None


def _message(found: Mapping[str, Any]) -> str:
    if found["type"] == "extra_forbidden":
        return f"there is no such key; got {found['input']!r}"
    if found["type"] == "missing":
        return "must be given"
    text = str(found["msg"]).removeprefix("Value error, ")
    return text if found["type"] == "value_error" else f"{text[0].lower()}{text[1:]}; got {found['input']!r}"


def _said(source: str, root: yaml.Node | None, place: Place, message: str) -> str:
    where = ".".join(str(part) for part in place)
    line = "" if root is None else f":{_line(root, place)}"
    return f"{source}{line}: {where}: {message}" if where else f"{source}{line}: {message}"


def _line(node: yaml.Node, place: Place) -> int:
    """The line of the deepest part of `place` that the file has; a key's line, where it is a key."""
    line = node.start_mark.line
    for part in place:
        if isinstance(node, yaml.MappingNode):
            pairs = {key.value: (key, value) for key, value in node.value}
            if str(part) not in pairs:
                break
            key, node = pairs[str(part)]
            line = key.start_mark.line
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line
        else:
            break
    return line + 1


def _dumped(data: Mapping[str, Any]) -> str:
    try:
        return yaml.safe_dump(dict(data), sort_keys=False, allow_unicode=True)
    except (yaml.YAMLError, RecursionError) as error:
        raise InputError(f"a study is plain data: texts, numbers, lists, mappings ({error})") from error


# --- the grid ---------------------------------------------------------------------------------------------


class Choice(Frozen):
    """One explainer, metric or task with all its settings; `place` is where it stands in the file."""

    label: str
    name: str | None = None
    code: str | None = None
    settings: dict[str, Any] = Field(default_factory=dict)
    samples: int | None = None
    seed: int = 0
    fill: str | float | None = None
    files: dict[str, Any] = Field(default_factory=dict)
    place: tuple[str | int, ...] = ()


def expand(file: StudyFile) -> dict[str, tuple[Choice, ...]]:
    """Every point of every entry's grid, under labels that differ, axis by axis.

    The product of the axes is never written out.
    """
    spec = file.spec
    axes = {axis: _choices(file, axis, getattr(spec, axis)) for axis in ("tasks", "explainers", "metrics")}
    check_limit("cells", math.prod(map(len, axes.values())) * len(spec.seeds), file.source)
    return axes


def _choices(file: StudyFile, axis: str, entries: Sequence[Entry]) -> tuple[Choice, ...]:
    found: dict[str, Choice] = {}
    points = sum(math.prod(map(len, entry.grid.values())) for entry in entries)
    check_limit("grid_points", points, f"{file.source}: {axis}")
    for number, entry in enumerate(entries):
        of_task: dict[str, Any] = {}
        if isinstance(entry, TaskEntry):
            of_task = {"samples": entry.samples or file.spec.samples, "files": entry.files}
            of_task |= {"seed": entry.seed, "fill": entry.fill}
        for values in itertools.product(*entry.grid.values()):
            point = dict(zip(entry.grid, values, strict=True))
            settings = {**entry.settings, **point}
            label = _label(entry, settings if entry.label is None else point)
            if label in found:
                raise file.error((axis, number), f"'{label}' is there already; give one of them a label")
            found[label] = Choice(
                label=label,
                name=entry.name,
                code=entry.code,
                settings=settings,
                place=(axis, number),
                **of_task,
            )
    return tuple(found.values())


def _label(entry: Entry, shown: Mapping[str, Any]) -> str:
    base = entry.label or (entry.origin if entry.code is None else entry.code.partition(":")[2])
    shown_as = ", ".join(f"{key}={_short(value)}" for key, value in shown.items())
    return f"{base} ({shown_as})" if shown else base


def _short(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str, separators=(",", ":"))
