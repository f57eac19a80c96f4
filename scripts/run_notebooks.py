"""Run the notebooks in examples/ in fresh kernels and keep their outputs, which become pages of the site.

`python scripts/run_notebooks.py [NAME ...]` after a change of a notebook, or of what it shows. What differs
from run to run for no reason (times, counters, warnings) is left out.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import nbclient
import nbformat

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def executed(path: Path, seconds: int = 1800) -> nbformat.NotebookNode:
    """The notebook with the outputs of a fresh kernel, in an empty folder, on one thread."""
    os.environ.update(PYTHONPATH=str(ROOT / "src"), OMP_NUM_THREADS="1")
    os.environ.pop("MPLBACKEND", None)
    book = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        nbclient.NotebookClient(
            book, timeout=seconds, kernel_name="python3", resources={"metadata": {"path": folder}}
        ).execute()
    return plain(book)


def plain(book: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Without counters, times, object addresses and what went to the error stream."""
    book.metadata = nbformat.from_dict({"kernelspec": KERNEL})
    for number, cell in enumerate(book.cells):
        cell.id, cell.metadata = f"cell-{number}", nbformat.from_dict({})
        if cell.cell_type == "code":
            cell.execution_count = None
            cell.outputs = joined([out for out in cell.outputs if out.get("name") != "stderr"])
            for out in cell.outputs:
                out.pop("execution_count", None)
                if out.output_type == "execute_result":
                    out.execution_count = None
    return book


def joined(outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """Printed text in one piece: where the kernel cuts it depends on how busy the machine is."""
    kept: list[nbformat.NotebookNode] = []
    for out in outputs:
        if kept and out.output_type == kept[-1].output_type == "stream":
            kept[-1].text += out.text
        else:
            kept.append(out)
    return kept


def main(names: list[str]) -> None:
    for path in sorted(EXAMPLES.glob("*.ipynb")):
        if not names or path.stem in names:
            print(path.name, flush=True)
            book = executed(path)
            nbformat.validate(book)
            path.write_text(nbformat.writes(book) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
