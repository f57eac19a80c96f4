"""The notebooks carry the outputs that the site shows, and run in a fresh kernel on the embedded tasks."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from scripts.docs_site.notebooks import NAMES, page

ROOT = Path(__file__).resolve().parents[2]
SECONDS = {"tutorial": 480}
"""Of one core; the tutorial asks a real language model."""


def code_cells(name: str) -> list[dict[str, Any]]:
    book = json.loads((ROOT / "examples" / f"{name}.ipynb").read_text("utf-8"))
    return [cell for cell in book["cells"] if cell["cell_type"] == "code"]


def kinds(cell: dict[str, Any]) -> list[str]:
    """What a cell gives: text, pictures, tables."""
    return [out["output_type"] + "/".join(sorted(out.get("data", {}))) for out in cell["outputs"]]


def test_there_is_one_for_each_kind() -> None:
    assert {path.stem for path in (ROOT / "examples").glob("*.ipynb")} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_outputs_are_kept_and_nothing_that_changes_by_itself(name: str) -> None:
    cells = code_cells(name)
    assert len(cells) >= 3
    assert sum("image/png" in out.get("data", {}) for cell in cells for out in cell["outputs"]) >= 1
    assert all(cell["execution_count"] is None for cell in cells)
    assert not [out for cell in cells for out in cell["outputs"] if out["output_type"] == "error"]
    said = json.dumps([cell["outputs"] for cell in cells])
    assert not re.search(
        r"at 0x[0-9a-f]{6}|(?<![\w/.:])/(?:\w+/)+\w", re.sub(r'"image/png": "[^"]*"', "", said)
    )


@pytest.mark.parametrize("name", NAMES)
def test_its_page_shows_every_picture_with_words_for_it(name: str) -> None:
    made = page(name)
    text = made[f"tutorials/{name}.md"]
    assert isinstance(text, str)
    assert text.startswith("# ")
    shown = re.findall(r"!\[(.+?)\]\((.+?\.png)\)", text)
    assert {f"tutorials/{file}" for _, file in shown} == {path for path in made if path.endswith(".png")}
    assert not [alt for alt, _ in shown if alt.startswith("A picture of")], (
        "say above the cell what it shows: # picture: ..."
    )


@pytest.mark.extras
@pytest.mark.parametrize("name", NAMES)
def test_it_runs_and_gives_what_is_kept(name: str) -> None:
    from scripts.run_notebooks import executed

    before = os.times().children_user
    book = executed(ROOT / "examples" / f"{name}.ipynb")
    # of one core, whatever else the machine is doing
    assert os.times().children_user - before < SECONDS.get(name, 120)
    fresh = [cell for cell in book.cells if cell.cell_type == "code"]
    assert [kinds(cell) for cell in fresh] == [kinds(cell) for cell in code_cells(name)]


@pytest.mark.extras
def test_printed_text_is_one_piece_however_the_kernel_cut_it() -> None:
    import nbformat

    from scripts.run_notebooks import plain

    v4 = nbformat.v4

    def book(*pieces: tuple[str, str]) -> Any:
        outputs = [v4.new_output("stream", name=name, text=text) for name, text in pieces]
        return plain(v4.new_notebook(cells=[v4.new_code_cell("", outputs=outputs)]))

    whole = book(("stdout", "a\nb\nc\n"))
    assert book(("stdout", "a\n"), ("stdout", "b\n"), ("stdout", "c\n")) == whole
    assert book(("stdout", "a\nb\n"), ("stderr", "a warning\n"), ("stdout", "c\n")) == whole
    assert len(whole.cells[0].outputs) == 1
