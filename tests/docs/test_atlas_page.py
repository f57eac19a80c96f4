"""The page of the atlas is what its data says, and the data is small enough to lie beside it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import veridical as vd

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / "docs" / "atlas"
MOST_BYTES = 400_000


def make_atlas():
    spec = importlib.util.spec_from_file_location("make_atlas", ROOT / "scripts" / "make_atlas.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_made_from_the_data():
    assert (ROOT / "docs" / "atlas.md").read_text() == make_atlas().page()


def test_every_metric_is_in_it_or_newer_than_it():
    known = {row["metric"] for row in vd.atlas.load(HOME).rows}
    assert {"pixel_flipping", "sparseness", "fast_gef"} <= known
    assert known - {name for name in known if ":" in name} <= set(vd.list_metrics())


def test_the_data_is_small():
    assert sum(path.stat().st_size for path in HOME.iterdir() if path.suffix != ".html") < MOST_BYTES
