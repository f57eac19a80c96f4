"""Write the pinned versions with the hashes of their files, as `pip install --require-hashes` wants them.

    python -m scripts.hash_pins > requirements-hashed.txt
    pip install --require-hashes -r requirements-hashed.txt
    pip install --no-deps --no-build-isolation -e .

The pins are those of constraints.txt and constraints-release.txt. The index is https://pypi.org, or
VERIDICAL_INDEX. Hashes come from its pages alone: a wheel of this machine (a torch of its own, say) can never
be among them.

Files are those that CPython 3.11 to 3.13 takes on Linux (x86_64); of what has no such wheel, the source.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from scripts.check_pins import INDEX, LINK, ROOT, fetched, identity, pins, plain

FILES = ("constraints.txt", "constraints-release.txt")
HASH = re.compile(r"#sha256=([0-9a-f]{64})")
PYTHONS = {"py3", "py2.py3", "py311", "cp311", "cp312", "cp313", *(f"cp3{minor}" for minor in range(2, 11))}


def fits(file: str) -> bool:
    """Whether CPython 3.11 to 3.13 on Linux (x86_64) could install this wheel."""
    if not file.endswith(".whl"):
        return False
    python, abi, platform = file.removesuffix(".whl").split("-")[-3:]
    of_linux = re.search(r"(many)?linux\w*_x86_64", platform) is not None and "musl" not in platform
    if platform != "any" and not of_linux:
        return False
    if abi == "none":
        return python in PYTHONS or bool({"py3", "cp3"} & set(python.split(".")))
    own = abi == python and python in ("cp311", "cp312", "cp313")
    return own or (abi == "abi3" and python in PYTHONS)


def hashes(page: str, name: str, version: str) -> list[str]:
    """The hashes of a version's files that fit, from a page of the index; of its source where none does."""
    found: dict[bool, list[str]] = {True: [], False: []}
    for facts, file in LINK.findall(page):
        if identity(file) != (plain(name), version) or "data-yanked" in facts:
            continue
        said = HASH.search(facts)
        if said and (fits(file) or not file.endswith(".whl")):
            found[fits(file)].append(said.group(1))
    return sorted(found[True] or found[False])


def chosen(*constraints: str) -> list[tuple[str, str]]:
    """The pins to write; a version that only one machine has, such as 2.13.0+cpu, is refused."""
    found: dict[str, str] = {}
    for name, version in (pin for text in constraints for pin in pins(text)):
        if "+" in version:
            raise SystemExit(f"{name} {version} is in no index: pin {version.partition('+')[0]}")
        if found.setdefault(name, version) != version:
            raise SystemExit(f"{name} is pinned to {found[name]} and to {version}")
    return sorted(found.items())


def written(found: Iterable[tuple[str, str, list[str]]]) -> str:
    """Requirements with hashes; what has none ends the program, since pip would refuse the whole file."""
    lines, without = [], []
    for name, version, known in found:
        if not known:
            without.append(f"{name} {version}")
        lines.append(" \\\n    ".join([f"{name}=={version}", *(f"--hash=sha256:{one}" for one in known)]))
    if without:
        raise SystemExit(f"{INDEX} offers no file with a hash for: {', '.join(without)}")
    return "# Made by scripts/hash_pins.py\n" + "\n".join(lines) + "\n"


def main() -> None:
    """Print the requirements."""
    wanted = chosen(*((ROOT / name).read_text() for name in FILES))

    def asked(pin: tuple[str, str]) -> tuple[str, str, list[str]]:
        page = fetched(f"simple/{pin[0]}/")
        return *pin, [] if page is None else hashes(page, *pin)

    with ThreadPoolExecutor(8) as pool:
        print(written(pool.map(asked, wanted)), end="")


if __name__ == "__main__":
    main()
