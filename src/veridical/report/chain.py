"""A verdict that others can check: inputs, plan, scores and report of an audit chain to one digest.

The digest stands on the report's first page. `veridical verify FOLDER` works it out again from the files of
the folder, without the model: who has the digest knows that not a score, setting or sentence was changed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from veridical._version import __version__
from veridical.auditing import Audit
from veridical.core.files import read_file
from veridical.report.rendering import FORMATS, read, render
from veridical.values.tables import csv_text

PAGES = {"html": "index.html", "md": "report.md"}


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


def chain(contents: Mapping[str, Any], inputs: str, files: Mapping[str, str]) -> dict[str, Any]:
    """Each link's digest, and the one they lead to."""
    links = {
        "inputs": inputs,
        "plan": digest(contents.get("settings")),
        "files": {name: digest_of_bytes(text.encode()) for name, text in files.items()},
        "report": digest({name: held for name, held in contents.items() if name not in ("chain", "made")}),
    }
    return {**links, "digest": digest(links)}


def verify_report(folder: str | Path) -> list[str]:
    """What is wrong with the folder of an audit's report; nothing where its digest holds."""
    folder = Path(folder)
    contents = read(folder)
    told = contents.get("chain")
    if not isinstance(told, dict) or not isinstance(told.get("files"), dict):
        return [f"{folder} has a report without a digest: it is of an earlier version, or no audit's"]
    own = chain(contents, told.get("inputs", ""), {})
    problems = [
        f"the {what} of report.json was changed: its digest is another"
        for what, name in (("plan", "plan"), ("content", "report"))
        if told.get(name) != own[name]
    ]
    links = {name: told.get(name) for name in ("inputs", "plan", "files", "report")}
    if digest(links) != told.get("digest"):
        problems.append("the links do not lead to the digest that the report shows")
    for name, expected in told["files"].items():
        path = folder / Path(str(name)).name
        if not path.is_file():
            problems.append(f"{name} is missing")
        elif digest_of_bytes(read_file(path)) != expected:
            problems.append(f"{name} was changed: its digest is another")
    return problems + _pages(folder, contents)


def _pages(folder: Path, contents: Mapping[str, Any]) -> list[str]:
    there = [(format, folder / PAGES[format]) for format in FORMATS if (folder / PAGES[format]).is_file()]
    if contents.get("version") != __version__:
        made = contents.get("version")
        return [f"{p.name} was drawn by veridical {made}, which alone can draw it again" for _, p in there]
    return [
        f"{path.name} is not the page of report.json"
        for format, path in there
        if read_file(path) != render(contents, format).encode()
    ]


def digest(data: Any) -> str:
    """The digest of plain data."""
    return digest_of_bytes(json.dumps(data, sort_keys=True, ensure_ascii=True).encode())


def digest_of_bytes(content: bytes) -> str:
    """BLAKE2b, 16 bytes."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()
