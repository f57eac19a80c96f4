"""Say what an installation holds: a bill of materials (CycloneDX 1.5, JSON), and how large each part is.

python scripts/sbom.py veridical --out sbom.cdx.json --extras text vision

It is read from the metadata of what is installed beside this Python: run it with the one of the environment
in question. `scripts/check_wheel.sh` does so where the wheel was installed with the pinned versions.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any
from urllib.parse import quote

REQUIRED = re.compile(r"^([A-Za-z0-9._-]+)\s*(?:\[([^\]]*)\])?")
EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")


def plain(name: str) -> str:
    """A project's name as indexes spell it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def needs(found: Distribution, extras: Sequence[str]) -> list[tuple[str, list[str]]]:
    """The names that a distribution requires with these extras, each with the extras it wants of them."""
    out = []
    for line in found.requires or ():
        wanted = EXTRA.search(line.partition(";")[2])
        if wanted is None or wanted.group(1) in extras:
            match = REQUIRED.match(line)
            assert match is not None, line
            out.append(
                (plain(match.group(1)), [e.strip() for e in (match.group(2) or "").split(",") if e.strip()])
            )
    return out


def closure(name: str, extras: Sequence[str]) -> tuple[dict[str, Distribution], dict[str, set[str]]]:
    """What is installed of a distribution and all it needs, and who needs whom."""
    found: dict[str, Distribution] = {}
    edges: dict[str, set[str]] = {}
    waiting = [(plain(name), list(extras))]
    seen: set[tuple[str, tuple[str, ...]]] = set()
    while waiting:
        here, own = waiting.pop()
        if (here, tuple(own)) in seen:
            continue
        seen.add((here, tuple(own)))
        try:
            found[here] = distribution(here)
        except PackageNotFoundError:  # a need of another system or Python
            continue
        inner = needs(found[here], own)
        edges.setdefault(here, set()).update(each for each, _ in inner)
        waiting += inner
    return found, {here: each & set(found) for here, each in edges.items()}


def size(found: Distribution) -> int:
    """The bytes of a distribution's files, without those that Python compiled."""
    paths = [Path(str(file.locate())) for file in found.files or () if file.suffix != ".pyc"]
    return sum(path.stat().st_size for path in paths if path.is_file())


def purl(name: str, version: str) -> str:
    """How a package of the index is named everywhere."""
    return f"pkg:pypi/{name}@{quote(version, safe='.')}"


def component(name: str, found: Distribution) -> dict[str, Any]:
    """One part: name, version, licence, size."""
    about = found.metadata
    made: dict[str, Any] = {"type": "library", "bom-ref": purl(name, found.version), "name": name}
    made |= {"version": found.version, "purl": purl(name, found.version)}
    licence = about.get("License-Expression")
    if licence:
        made["licenses"] = [{"expression": licence}]
    elif about.get("License") and len(about["License"]) < 100:
        made["licenses"] = [{"license": {"name": about["License"]}}]
    made["properties"] = [{"name": "veridical:bytes", "value": str(size(found))}]
    return made


def bill(name: str, extras: Sequence[str]) -> dict[str, Any]:
    """The bill of materials of a distribution and all it needs: the same bytes for the same installation."""
    found, edges = closure(name, extras)
    if plain(name) not in found:
        raise SystemExit(f"{name} is not installed beside this Python")
    parts = {here: component(here, each) for here, each in sorted(found.items())}
    own = parts.pop(plain(name)) | {"type": "application"}
    reference = {here: purl(here, each.version) for here, each in found.items()}
    depends = [
        {"ref": reference[here], "dependsOn": sorted(reference[each] for each in edges.get(here, ()))}
        for here in sorted(found)
    ]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": own},
        "components": list(parts.values()),
        "dependencies": depends,
    }


def sizes(made: dict[str, Any]) -> list[tuple[str, int]]:
    """(name, bytes) of every part, the largest first."""
    parts = [made["metadata"]["component"], *made["components"]]
    return sorted(((p["name"], int(p["properties"][0]["value"])) for p in parts), key=lambda p: -p[1])


def main() -> None:
    """Write the bill, and print the largest parts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="?", default="veridical")
    parser.add_argument("--extras", nargs="*", default=[])
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    made = bill(given.name, given.extras)
    if given.out is not None:
        given.out.write_text(json.dumps(made, indent=1) + "\n")
    parts = sizes(made)
    print(f"{len(parts)} parts, {sum(each for _, each in parts) / 1e6:,.0f} MB")
    for name, each in parts[:12]:
        print(f"{each / 1e6:8.1f} MB  {name}")


if __name__ == "__main__":
    main()
