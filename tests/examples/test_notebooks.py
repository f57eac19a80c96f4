"""The notebooks are those of the script, hold no outputs, and run in a fresh kernel on the embedded tasks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("image", "tabular", "series", "text", "concepts")
SECONDS = 60


def test_there_is_one_for_each_kind() -> None:
    assert {path.stem for path in (ROOT / "examples").glob("*.ipynb")} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_no_outputs_are_kept(name: str) -> None:
    book = json.loads((ROOT / "examples" / f"{name}.ipynb").read_text())
    code = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    assert len(code) >= 3
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in code)
    assert book["cells"][0]["source"][0].startswith("# ")


@pytest.mark.extras
def test_they_are_those_of_the_script() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/make_notebooks.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.extras
@pytest.mark.parametrize("name", NAMES)
def test_it_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbclient
    import nbformat

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    book = nbformat.read(ROOT / "examples" / f"{name}.ipynb", as_version=4)
    before = os.times().children_user
    nbclient.NotebookClient(
        book, timeout=4 * SECONDS, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    # of one core, whatever else the machine is doing
    assert os.times().children_user - before < SECONDS
    errors = [o for cell in book.cells for o in cell.get("outputs", []) if o["output_type"] == "error"]
    assert not errors
