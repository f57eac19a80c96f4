"""The notebooks carry the outputs that the site shows, and run in a fresh kernel on the embedded tasks."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from scripts.docs_site.notebooks import NAMES, WIDTH, page, wrapped

ROOT = Path(__file__).resolve().parents[2]
SECONDS = {"tutorial": 480}
"""Of one core; the tutorial asks a real language model."""


def code_cells(name: str) -> list[dict[str, Any]]:
    book = json.loads((ROOT / "examples" / f"{name}.ipynb").read_text("utf-8"))
    return [cell for cell in book["cells"] if cell["cell_type"] == "code"]


def kinds(cell: dict[str, Any]) -> list[str]:
    """What a cell gives: text, pictures, tables."""
    return [out["output_type"] + "/".join(sorted(out.get("data", {}))) for out in cell["outputs"]]


def printed(cell: dict[str, Any]) -> str:
    return "".join("".join(out["text"]) for out in cell["outputs"] if out["output_type"] == "stream")


NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def same_text(one: str, other: str) -> bool:
    """Whether two printed texts agree: every word, and every number to 1.5 units of its last digit."""
    if " ".join(NUMBER.sub("#", one).split()) != " ".join(NUMBER.sub("#", other).split()):
        return False
    for a, b in zip(NUMBER.findall(one), NUMBER.findall(other), strict=True):
        digits = min(len(a.partition(".")[2]), len(b.partition(".")[2]))
        if abs(float(a) - float(b)) > 1.5 * 10**-digits:
            return False
    return True


def test_texts_agree_in_words_and_nearly_in_numbers() -> None:
    kept = "saliency  0.565 [0.521, 0.607] in 92%"
    assert same_text(kept, "saliency 0.564 [0.52, 0.607] in 91%")
    assert not same_text(kept, "saliency 0.565 [0.517, 0.610] in 92%")
    assert not same_text(kept, "saliency 0.565 [0.521, 0.607] in 89%")
    assert not same_text(kept, "gradient 0.565 [0.521, 0.607] in 92%")


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


def test_long_sentences_are_broken_and_tables_are_not() -> None:
    sentence, row = "  " + "word " * 40, "name  " * 30
    broken = wrapped(f"{sentence}\n{row}").splitlines()
    assert broken[-1] == row.rstrip()
    assert all(len(line) <= WIDTH and line.startswith("  word") for line in broken[:-1])
    assert " ".join(broken[:-1]).split() == sentence.split()


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
    stale = [
        f"{printed(old)}\n--- now ---\n{printed(new)}"
        for old, new in zip(code_cells(name), fresh, strict=True)
        if not same_text(printed(old), printed(new))
    ]
    assert not stale, "run scripts/run_notebooks.py, and read the words around:\n" + "\n".join(stale)


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
