"""Draw docs/assets/coverage.svg: every explainer on every architecture of the coverage test.

Run `python scripts/make_coverage.py` after an explainer or an architecture was added.
"""

from __future__ import annotations

import sys
import warnings
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.reference.architectures import CONVOLUTIONAL, HUGGING_FACE, OTHERS, made  # noqa: E402
from veridical.explainers import registry  # noqa: E402

CELL, LEFT, TOP = 22, 170, 110
WORKS, REFUSED = "#2b6cb0", "#d9d9d9"


def reasons() -> dict[str, dict[str, str | None]]:
    """Why an explainer does not apply to an architecture, or None if it does."""
    tasks = {name: made(name) for name in (*CONVOLUTIONAL, *OTHERS, *HUGGING_FACE)}
    return {
        explainer: {name: registry.make(explainer).why_not(task) for name, task in tasks.items()}
        for explainer in registry
        if not registry.make(explainer).control and explainer != "tree_shap"
    }


def drawn(table: dict[str, dict[str, str | None]]) -> str:
    """The table as a picture."""
    names = list(next(iter(table.values())))
    width, height = LEFT + CELL * len(names) + 10, TOP + CELL * len(table) + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12">'
    ]
    for column, name in enumerate(names):
        x = LEFT + CELL * column + 14
        parts.append(f'<text transform="translate({x},{TOP - 8}) rotate(-60)">{escape(name)}</text>')
    for row, (explainer, cells) in enumerate(table.items()):
        y = TOP + CELL * row
        parts.append(f'<text x="{LEFT - 8}" y="{y + 15}" text-anchor="end">{escape(explainer)}</text>')
        for column, (name, reason) in enumerate(cells.items()):
            title = escape(f"{explainer} on {name}: {reason or 'a map'}")
            parts.append(
                f'<rect x="{LEFT + CELL * column}" y="{y}" width="{CELL - 2}" height="{CELL - 2}" '
                f'fill="{REFUSED if reason else WORKS}"><title>{title}</title></rect>'
            )
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    (ROOT / "docs" / "assets" / "coverage.svg").write_text(drawn(reasons()))
