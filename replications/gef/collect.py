"""Markdown rows of what the programs of this folder and `benchmarks.gef` have written.

    python -m replications.gef.collect FOLDER [--picture FILE]

Reads every JSON file below FOLDER: cells of `efficientnet`, Fast-GEF by `pictures`, `llm.json`,
and overheads of the benchmark. Files it does not know are passed over. With --picture, the images of all npz
files that `pictures` wrote, one file a row.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SHOWN = 6


def number(value: float | None, digits: int = 3) -> str:
    """A number, or nothing where there is none."""
    return "" if value is None or value != value else f"{value:.{digits}f}"


def photos(found: dict[str, Any]) -> Iterator[str]:
    """Cells of `replications.gef.efficientnet`."""
    for cell in found["cells"]:
        if "mean" in cell:
            yield (
                f"| {cell['explainer']} | {cell['form']} | {number(cell['mean'])} ± {number(cell['error'])} "
                f"| {number(cell['ceiling'])} | {number(cell['partial'], 2)} | {cell['seconds']} "
                f"| {cell['forward']:,} / {cell['backward']:,} | {(cell['MiB'] or 0) / 1024:.1f} GiB |"
            )
        else:
            yield f"| {cell['explainer']} | {cell['form']} | {cell['error message']} |"


def classes(method: str, found: dict[str, Any]) -> Iterator[str]:
    """Fast-GEF of pictures, by steps."""
    for what, cell in found.items():
        if what.startswith("Fast-GEF"):
            steps = what.removeprefix("Fast-GEF, ").removesuffix(" steps")
            yield (
                f"| {method}-{steps} | {cell['paper (ResNet-18)']} | {number(cell['mean'], 2)} ± "
                f"{number(cell['error'], 2)} | {number(cell['ceiling'], 2)} | {number(cell['partial'], 2)} "
                f"| {cell['classes']} classes, M = {cell['draws']} | {cell['seconds']} s |"
            )


def language(found: dict[str, Any]) -> Iterator[str]:
    """LLM-x beside its controls."""
    for who, cell in found.items():
        if isinstance(cell, dict) and "interval" in cell:
            low, high = cell["interval"] or (None, None)
            yield (
                f"| {who} | {number(cell['mean'])} [{number(low)}, {number(high)}] "
                f"| {cell['with a value']} of {cell['messages']} | {cell['flagged']} |"
            )
    yield f"{found.get('replies')} replies, {found.get('replies that are no JSON')} of them no JSON"


def overheads(found: dict[str, Any]) -> Iterator[str]:
    """Lines of `benchmarks.gef`."""
    for line in found["overhead"]:
        label = line.get("label") or line.get("name")
        yield f"| {label} | {line['seconds']:.3f} s | {line['overhead']:.2f} |"
    for line in found.get("published comparison", ()):
        yield f"| 16 MNIST images, {line['form']} | {line['seconds']} s | {line['published program']} s |"


def rows(path: Path) -> Iterator[str]:
    """What one file gives."""
    found = json.loads(path.read_text())
    if not isinstance(found, dict):
        return
    if "cells" in found:
        yield from photos(found)
    elif "overhead" in found:
        yield from overheads(found)
    elif "LLM-X" in found:
        yield from language(found)
    elif any(name.startswith("Fast-GEF") for name in found):
        yield from classes(path.stem.split("-")[-1], found)


def picture(folder: Path, out: Path) -> None:
    """The first images of every npz file, one file a row."""
    import numpy as np
    from matplotlib.figure import Figure

    files = sorted(folder.rglob("*.npz"))
    if not files:
        raise SystemExit(f"no npz files below {folder}")
    figure = Figure(figsize=(1.6 * SHOWN, 1.7 * len(files)), layout="constrained")
    grid = figure.subplots(len(files), SHOWN, squeeze=False)
    for line, path in zip(grid, files, strict=True):
        for cell, image in zip(line, np.load(path)["images"], strict=False):
            cell.imshow(image)
        for cell in line:
            cell.set_axis_off()
        line[0].set_title(path.stem, fontsize=7, loc="left")
    figure.savefig(out, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--picture", type=Path)
    given = parser.parse_args()
    for path in sorted(given.folder.rglob("*.json")):
        lines = list(rows(path))
        if lines:
            print(path.relative_to(given.folder), *lines, sep="\n")
    if given.picture is not None:
        picture(given.folder, given.picture)


if __name__ == "__main__":
    main()
