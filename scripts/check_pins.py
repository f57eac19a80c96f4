"""Ask the package index about every pin of constraints.txt: is it there, withdrawn, known to be unsafe?

`python scripts/check_pins.py` needs an index (https://pypi.org, or VERIDICAL_INDEX). Withdrawn releases are
read from the simple index that every mirror has; known vulnerabilities from the index's JSON pages, which
most mirrors do not serve: then it says that this was not checked. Exit status 1: a pin is missing,
withdrawn or vulnerable.
"""

from __future__ import annotations

import json
import os
import re
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
INDEX = os.environ.get("VERIDICAL_INDEX", "https://pypi.org").rstrip("/")
LINK = re.compile(r"<a\s([^>]*)>\s*([^<]+?)\s*</a>", re.IGNORECASE)


@dataclass(frozen=True)
class Finding:
    """What the index says of one pin; `vulnerabilities` is None where it does not say."""

    name: str
    version: str
    present: bool = True
    withdrawn: bool = False
    vulnerabilities: list[str] | None = field(default=None)


def plain(name: str) -> str:
    """A project's name as indexes spell it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(text: str) -> list[tuple[str, str]]:
    """(name, version) of every line `name==version`."""
    found = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;#]+)", text, re.MULTILINE)
    return [(plain(name), version) for name, version in found]


def identity(file: str) -> tuple[str, str]:
    """The project and version that a file's name states."""
    if file.endswith(".whl"):
        name, version = file.split("-")[:2]
    else:
        name, _, version = re.sub(r"\.(tar\.gz|tar\.bz2|zip)$", "", file).rpartition("-")
    return plain(name), version


def releases(page: str, name: str, version: str) -> list[bool]:
    """For each file of this version on a page of the simple index: whether it was withdrawn."""
    files = LINK.findall(page)
    return ["data-yanked" in facts for facts, file in files if identity(file) == (plain(name), version)]


def fetched(path: str) -> str | None:
    """A page of the index, or None if it has none."""
    try:
        with urllib.request.urlopen(f"{INDEX}/{path}", timeout=60) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError:
        return None


def asked(pin: tuple[str, str]) -> Finding:
    """What the index says of a pin."""
    name, version = pin
    page = fetched(f"simple/{name}/")
    files = [] if page is None else releases(page, name, version)
    facts = fetched(f"pypi/{name}/{version}/json")
    known = None
    if facts is not None:
        known = [v["id"] for v in json.loads(facts).get("vulnerabilities", []) if not v.get("withdrawn")]
    return Finding(name, version, bool(files), bool(files) and all(files), known)


def told(findings: list[Finding]) -> tuple[str, bool]:
    """A report, and whether something is wrong."""
    lines = []
    for found in findings:
        if not found.present:
            lines.append(f"missing: {found.name} {found.version}")
        if found.withdrawn:
            lines.append(f"withdrawn: {found.name} {found.version}")
        if found.vulnerabilities:
            lines.append(f"vulnerable: {found.name} {found.version} ({', '.join(found.vulnerabilities)})")
    unknown = sum(found.vulnerabilities is None for found in findings)
    summary = f"{len(findings)} pins: {len(lines)} findings"
    if unknown:
        summary += f"; vulnerabilities were NOT checked for {unknown} of them, the index does not serve them"
    return "\n".join([*lines, summary]), bool(lines)


if __name__ == "__main__":
    with ThreadPoolExecutor(8) as pool:
        report, wrong = told(list(pool.map(asked, pins((ROOT / "constraints.txt").read_text()))))
    print(report)
    sys.exit(1 if wrong else 0)
