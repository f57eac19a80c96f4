"""Draw docs/assets/coverage.svg: every explainer on every architecture, and how its map is known to be right.

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
from tests.reference.coverage import CHECKS, LAWFUL  # noqa: E402
from veridical.explainers import registry  # noqa: E402

CELL, LEFT, TOP = 22, 170, 110
CHECKED = "against an independent computation on this architecture, or an explainer that has one"
LAW = "by its law: values sum to what they explain"
OUTPUTS = "by what it reads, outputs or attention alone, and by a slow rewrite elsewhere"
COLOURS = {CHECKED: "#1a365d", LAW: "#4299e1", OUTPUTS: "#b7cfe8"}
REFUSED = "#d9d9d9"


def how(explainer: str) -> str:
    """How an explainer's maps are known to be right."""
    checked = explainer in CHECKS or explainer == "lrp_epsilon"  # that one by a model with detached parts
    return CHECKED if checked else LAW if explainer in LAWFUL else OUTPUTS


def reasons() -> dict[str, dict[str, str | None]]:
    """Why an explainer does not apply to an architecture, or None if it does."""
    chosen = [n for n in registry if not registry.make(n).control and n != "tree_shap"]
    out: dict[str, dict[str, str | None]] = {explainer: {} for explainer in chosen}
    for name in (*CONVOLUTIONAL, *OTHERS, *HUGGING_FACE):
        task = made(name)  # one after the other: a library may change its classes when it makes the next
        for explainer in chosen:
            out[explainer][name] = registry.make(explainer).inapplicable_reason(task)
    return out


def drawn(table: dict[str, dict[str, str | None]]) -> str:
    """The table as a picture."""
    names = list(next(iter(table.values())))
    width = LEFT + CELL * len(names) + 10
    height = TOP + CELL * (len(table) + len(COLOURS) + 2)
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
            title = escape(f"{explainer} on {name}: {reason or how(explainer)}")
            parts.append(
                f'<rect x="{LEFT + CELL * column}" y="{y}" width="{CELL - 2}" height="{CELL - 2}" '
                f'fill="{REFUSED if reason else COLOURS[how(explainer)]}"><title>{title}</title></rect>'
            )
    below = TOP + CELL * (len(table) + 1)
    for row, (text, colour) in enumerate([*COLOURS.items(), ("refused, with the reason", REFUSED)]):
        y = below + CELL * row
        parts.append(f'<rect x="10" y="{y}" width="{CELL - 2}" height="{CELL - 2}" fill="{colour}"/>')
        parts.append(f'<text x="38" y="{y + 15}">{escape(text)}</text>')
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    (ROOT / "docs" / "assets" / "coverage.svg").write_text(drawn(reasons()))
