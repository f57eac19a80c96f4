"""Notebooks as pages: their cells as Markdown, with the outputs they carry."""

from __future__ import annotations

import base64
import json
import re
import textwrap
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NAMES = ("tutorial", "image", "tabular", "text", "series", "language_models", "concepts", "training_rows")
WIDTH = 76
"""Letters in a line of printed text that a page shows without scrolling."""
ALT = re.compile(r"^# picture: (.+)$", re.MULTILINE)
"""A comment that says what the picture of a cell shows, for those who cannot see it."""


def page(name: str) -> dict[str, str | bytes]:
    """The page `tutorials/<name>.md` and its pictures."""
    book = json.loads((EXAMPLES / f"{name}.ipynb").read_text("utf-8"))
    made: dict[str, str | bytes] = {}
    lines: list[str] = []
    for number, cell in enumerate(book["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            lines += [source, ""]
            continue
        alt = ALT.search(source)
        lines += ["```python", ALT.sub("", source).strip(), "```", ""]
        for output in cell["outputs"]:
            lines += _output(
                output, f"{name}-{number}.png", alt[1] if alt else "A picture of the cell above", made
            )
    download = (
        f"*This page is the notebook `examples/{name}.ipynb`, which carries its outputs; "
        "the tests run it in a fresh kernel.*"
    )
    made[f"tutorials/{name}.md"] = "\n".join([*lines, "---", "", download, ""])
    return made


def wrapped(text: str) -> str:
    """Printed text whose long sentences are broken to the width of a page; tables stay as they are."""
    lines: list[str] = []
    for line in text.rstrip().splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        prose = len(line) > WIDTH and "  " not in line.strip()
        lines += (
            textwrap.wrap(line.strip(), WIDTH, initial_indent=indent, subsequent_indent=indent)
            if prose
            else [line]
        )
    return "\n".join(lines)


def _output(output: dict[str, Any], picture: str, alt: str, made: dict[str, str | bytes]) -> list[str]:
    if output["output_type"] == "stream":
        return ["```text", wrapped("".join(output["text"])), "```", ""]
    data = output.get("data", {})
    if "image/png" in data:
        made[f"tutorials/{picture}"] = base64.b64decode("".join(data["image/png"]))
        return [f"![{alt}]({picture})", ""]
    if "text/html" in data:
        html = re.sub(r"<style.*?</style>", "", "".join(data["text/html"]), flags=re.DOTALL)
        return [f'<div class="output">{" ".join(html.split())}</div>', ""]
    return ["```text", "".join(data.get("text/plain", "")).rstrip(), "```", ""]


def everything() -> dict[str, str | bytes]:
    return {path: content for name in NAMES for path, content in page(name).items()}
