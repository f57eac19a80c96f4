"""The page, its Markdown form, its pictures, and the command that writes them."""

from __future__ import annotations

import json
import re
import sys
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

import veridical as vd
from benchmarks.atlas import jobs, measure
from benchmarks.atlas.__main__ import app
from benchmarks.atlas.heat_map import heat_map
from benchmarks.atlas.page import contents, render, write_atlas
from benchmarks.atlas.tests.judges import Coin

pytestmark = pytest.mark.slow
HOSTILE = "<script>alert(1)</script>|*_"


@pytest.fixture(scope="module")
def atlas() -> vd.atlas.Atlas:
    return measure(
        size="tiny",
        metrics={
            "pixel_flipping": "pixel_flipping",
            HOSTILE: Coin(),
            "comprehensiveness": "comprehensiveness",
        },
        tasks=["known/linear", "known/planted_tokens"],
        progress=False,
    )


def test_the_page_shows_every_metric_and_escapes_names(atlas):
    page = render(contents(atlas), "html")
    assert page.count('data-name="metrics on') == 2
    assert "pixel_<wbr>flipping" in page
    assert HOSTILE not in page
    assert "&lt;script&gt;" in page
    assert ", this task is table" in page
    assert json.loads(json.dumps(contents(atlas), allow_nan=False))["kind"] == "atlas"


def test_tables_in_markdown_have_as_many_cells_as_heads(atlas):
    page = render(contents(atlas), "md")
    lines = [line for line in page.splitlines() if line.startswith("|")]
    assert len(lines) == 2 * 2 + 2 + 3
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {9}
    assert "<script>" not in page


def test_a_heat_map_is_a_drawing_by_itself_and_colours_follow_chance():
    drawn = heat_map("title", ["a & b", "c"], ["table", "language model"], [[1.0, 0.5], [None, 0.0]], 0.5)
    root = ElementTree.fromstring(drawn)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    fills = [rect.get("fill") for rect in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert fills == ["#4898c4", "#f6f3ec", "#e3e1dc", "#de895c"]


def test_write_atlas_leaves_page_and_pictures(atlas, tmp_path):
    names = {path.name for path in write_atlas(atlas, tmp_path)}
    assert names == {"index.html", "atlas.md", "power.svg", "agreement.svg"}
    assert "](power.svg)" in (tmp_path / "atlas.md").read_text()


def run(*words: str):
    return CliRunner().invoke(app, list(words))


def test_the_command_measures_and_goes_on(tmp_path):
    given = [
        str(tmp_path),
        "--size",
        "tiny",
        "-t",
        "known/linear",
        "-m",
        "sparseness",
        "-e",
        "shuffled:gradient",
    ]
    done = run(*given)
    assert done.exit_code == 0, done.output
    assert "seed 0, size tiny" in done.output
    assert "table, do not use: sparseness" in done.output
    assert (tmp_path / "index.html").is_file()
    near = vd.atlas.load(tmp_path).explainer_frame()
    assert "shuffled:gradient" in set(near["explainer"])
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "cells").iterdir()}
    assert run(*given).exit_code == 0
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cells").iterdir()} == before


def test_ctrl_c_leaves_the_page_of_what_is_finished(tmp_path, monkeypatch):
    real, asked = jobs.carry_out, []

    def ended(cell):
        asked.append(cell)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return real(cell)

    monkeypatch.setattr(jobs, "carry_out", ended)
    given = [str(tmp_path), "--size", "tiny", "-t", "known/linear"]
    given += [word for name in ("sparseness", "complexity", "pixel_flipping") for word in ("-m", name)]
    done = run(*given)
    assert done.exit_code == 130, done.output
    assert "the same command goes on from there" in done.output
    assert "not measured yet" in (tmp_path / "atlas.md").read_text()
    again = run(*given, "--only-kept")
    assert again.exit_code == 0
    assert len(asked) == 3
    assert run(*given).exit_code == 0
    assert "not measured yet" not in (tmp_path / "atlas.md").read_text()


def test_code_runs_only_when_allowed(tmp_path):
    given = [
        str(tmp_path),
        "--size",
        "tiny",
        "-t",
        "known/linear",
        "-m",
        "benchmarks.atlas.tests.judges:Coin",
    ]
    refused = run(*given)
    assert isinstance(refused.exception, vd.errors.InputError)
    assert "--allow-code" in str(refused.exception)
    allowed = run(*given, "--allow-code")
    assert allowed.exit_code == 0, allowed.output
    assert "do not use: benchmarks.atlas.tests.judges:Coin" in allowed.output


def test_code_is_looked_for_where_the_user_stands(tmp_path, monkeypatch):
    (tmp_path / "my_atlas_code.py").write_text(
        "def ones(model, inputs, targets):\n    return inputs * 0 + 1\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [path for path in sys.path if path not in ("", str(tmp_path))])
    given = ["out", "--size", "tiny", "-t", "known/linear", "-m", "sparseness", "-e", "my_atlas_code:ones"]
    done = run(*given, "--allow-code")
    assert done.exit_code == 0, done.output
    assert "my_atlas_code:ones" in set(vd.atlas.load("out").explainer_frame()["explainer"])


def test_workers_give_the_same_bytes(tmp_path):
    given = {
        "size": "tiny",
        "metrics": ["pixel_flipping", "fast_gef"],
        "tasks": ["known/linear"],
        "progress": False,
    }
    measure(tmp_path / "one", **given)
    measure(tmp_path / "two", workers=2, **given)
    assert (tmp_path / "one" / "atlas.json").read_bytes() == (tmp_path / "two" / "atlas.json").read_bytes()
