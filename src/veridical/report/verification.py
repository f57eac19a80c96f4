"""What was audited and how to do it again, and a verdict that others can check.

All that is shown and the tables of scores beside it lead to one checksum, which stands on the report's page.
`veridical verify FOLDER` works it out again from the files of the folder, without the model: who has the
checksum knows that not a score, setting or sentence was changed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import nn

from veridical._version import __version__
from veridical.auditing import Audit
from veridical.auditing.recheck import FILE as BASELINE
from veridical.core.files import checksum, read_file, unpack_tensors
from veridical.errors import FormatError
from veridical.models.adapters import ArrayModel, FunctionModel
from veridical.models.inner_units import Switched
from veridical.models.prompts import PromptModel
from veridical.report.rendering import CONTENTS, read, render
from veridical.values.content_hash import content_digest, hash_tensors
from veridical.values.tables import csv_text
from veridical.values.task import Task

PAGES = {"html": "index.html", "md": "report.md"}
AGAIN = "copy the whole folder again, or run the audit again"


def identity(audit: Audit) -> dict[str, Any]:
    """Digests of everything the verdict is about, and the call that repeats it."""
    task = audit.task
    return {
        "model": model_name(task),
        "parameters": sum(p.numel() for p in task.predictor.source.module.parameters()),
        "digests": {
            "weights": content_digest(task.predictor.model, {}, ""),
            "samples": hash_tensors({"inputs": task.inputs, "labels": task.labels}).hexdigest(),
            "reference rows": None if task.train is None else hash_tensors({"train": task.train}).hexdigest(),
            "sample ids": hash_tensors({"ids": task.ids}).hexdigest(),
            "task": task.content_hash(),
        },
        "ids": task.ids.cpu().tolist()[:200],
        "versions": dict(audit.versions),
        "call": audit.call,
    }


def model_name(task: Task) -> str:
    """The model by its own class and library, as 'LGBMClassifier, lightgbm 4.7.0'; a function by its name."""
    module = callers_module(task)
    model = getattr(module, "estimator", None)
    if model is None and isinstance(module, ArrayModel | FunctionModel):
        return f"function {getattr(module.function, '__name__', type(module.function).__name__)}"
    kind = type(module if model is None else model)
    library = kind.__module__.partition(".")[0]
    version = getattr(sys.modules.get(library), "__version__", "")
    return f"{kind.__name__}, {library} {version}" if version else kind.__name__


def callers_module(task: Task) -> nn.Module:
    """The model as its owner knows it: without what holds the prompts, or the switches inside it."""
    module = task.predictor.source.module
    while isinstance(module, PromptModel | Switched):
        module = module.model if isinstance(module, PromptModel) else module.module
    return module


def tables(audit: Audit) -> dict[str, str]:
    """The files that stand beside the report, by name: the verdict as data, ranking, cells and samples."""
    import pandas as pd

    samples = [
        {"explainer": who, "metric": what, "id": ident, "value": value, "flags": flags}
        for (who, what), scores in audit.evaluation.scores.items()
        for ident, value, flags in scores.to_frame()[["id", "value", "flags"]].itertuples(index=False)
    ]
    return {
        "audit.json": json.dumps(audit.to_json(), indent=2) + "\n",
        "ranking.csv": csv_text(audit.to_frame()),
        "scores.csv": csv_text(audit.evaluation.to_frame()),
        "samples.csv": csv_text(pd.DataFrame(samples)),
    }


def checksums(contents: Mapping[str, Any], files: Mapping[str, str]) -> dict[str, Any]:
    """The checksum of all that is shown, of each file beside it, and the one of them all."""
    shown = {name: held for name, held in contents.items() if name not in ("checksums", "made")}
    links = {
        "report": _checksum_of(shown),
        "files": {name: checksum(text.encode()) for name, text in files.items()},
    }
    return {**links, "all": _checksum_of(links)}


def is_report(folder: str | Path) -> bool:
    """Whether a folder holds an audit's report, or what is left of one."""
    return any((Path(folder) / name).is_file() for name in (CONTENTS, "audit.json"))


def verify_report(folder: str | Path) -> list[str]:
    """What is wrong with the folder of an audit's report; nothing where its checksum holds."""
    folder = Path(folder)
    if not (folder / CONTENTS).is_file():
        return [f"{CONTENTS} is missing, without which nothing can be checked: {AGAIN}"]
    try:
        contents = read(folder)
    except FormatError as error:
        return [f"{error}; {AGAIN}"]
    stated = contents.get("checksums")
    if not isinstance(stated, dict) or not isinstance(stated.get("files"), dict):
        return [f"{folder} has a report without a checksum: it is of an earlier version, or no audit's"]
    problems = []
    if stated.get("report") != checksums(contents, {})["report"]:
        problems.append("the content of report.json was changed: its checksum is another")
    if stated.get("all") != _checksum_of({name: stated.get(name) for name in ("report", "files")}):
        problems.append("the checksums of the files do not lead to the one that the report shows")
    for name, expected in stated["files"].items():
        path = folder / Path(str(name)).name
        if not path.is_file():
            problems.append(f"{name} is missing")
        elif checksum(read_file(path)) != expected:
            problems.append(f"{name} was changed: its checksum is another")
    problems += [f"{BASELINE} is missing"] * (not (folder / BASELINE).is_file())
    with suppress(FileNotFoundError):
        try:
            unpack_tensors((folder / BASELINE).read_bytes(), "baseline", BASELINE)
        except FormatError as error:
            problems.append(str(error))
    problems += [f"only the audit makes its files again: {AGAIN}"] * bool(problems)
    if not (folder / PAGES["html"]).is_file():
        problems.append(f"{PAGES['html']} is missing: veridical report {folder} draws it from {CONTENTS}")
    return problems + _pages(folder, contents)


def foreign_files(folder: str | Path) -> list[str]:
    """What lies in the folder of an audit's report and is not of it."""
    with suppress(FormatError, LookupError, TypeError):
        own = {*read(folder)["checksums"]["files"], *PAGES.values(), CONTENTS, BASELINE}
        return sorted({path.name for path in Path(folder).iterdir()} - own)
    return []


def _pages(folder: Path, contents: Mapping[str, Any]) -> list[str]:
    there = {format: folder / page for format, page in PAGES.items() if (folder / page).is_file()}
    made = contents.get("version")
    if made != __version__:
        return [
            f"{p.name} was drawn by veridical {made}, which alone can draw it again" for p in there.values()
        ]
    try:
        pages = {path: render(contents, format).encode() for format, path in there.items()}
    except FormatError as error:
        return [str(error)]
    return [
        f"{path.name} is not the page of report.json"
        for path, page in pages.items()
        if read_file(path) != page
    ]


def _checksum_of(data: Any) -> str:
    """The checksum of plain data."""
    return checksum(json.dumps(data, sort_keys=True, ensure_ascii=True).encode())
