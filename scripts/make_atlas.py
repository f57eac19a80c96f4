"""Write docs/atlas.md and its pictures from the data in docs/atlas; no model is asked.

    python scripts/make_atlas.py [FOLDER]

With a folder, the data of an atlas measured there (`python -m benchmarks.atlas FOLDER --size standard`) is
taken over first.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import veridical as vd
from veridical.core.files import write_file

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.atlas.page import PICTURES, contents, pictured, render  # noqa: E402 (the path comes first)

DOCS = ROOT / "docs"
HOME = DOCS / "atlas"
DATA = ("atlas.json", "run.json", "schema.json", "metrics.parquet", "explainers.parquet")


def page(home: Path = HOME) -> str:
    """The page of the data in a folder, which lies beside it."""
    return render({**contents(vd.atlas.load(home)), "address": f"{home.name}/"}, "md").rstrip() + "\n"


def table(home: Path = HOME) -> str:
    """The page of tables to sort and filter; the site makes it when it is built."""
    return render(contents(vd.atlas.load(home)), "html")


def main() -> None:
    if len(sys.argv) > 1:
        HOME.mkdir(exist_ok=True)
        for name in DATA:
            shutil.copy(Path(sys.argv[1]) / name, HOME / name)
    atlas = vd.atlas.load(HOME)
    write_file(DOCS / "atlas.md", page(), private=False)
    for name in PICTURES:
        write_file(HOME / f"{name}.svg", pictured(atlas, name), private=False)


if __name__ == "__main__":
    main()
