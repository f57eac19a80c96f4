"""Formulas as MathML, made when the site is built: browsers draw them without a script or a network.

A block is fenced as ```` ```math ````, a formula inside a line stands between $` and `$.
"""

from __future__ import annotations

import re

from latex2mathml.converter import convert

FENCE = re.compile(
    r"^(?P<marks>```+|~~~+)(?P<kind>[^\n]*)\n(?P<body>.*?)^(?P=marks)[ ]*$", re.MULTILINE | re.DOTALL
)
INLINE = re.compile(r"\$`([^`]+)`\$")
BAR = re.compile(r'<mo stretchy="false">(?:&#x0007C;|\|)</mo>')


def mathml(latex: str, display: str = "inline") -> str:
    """One formula. The converter knows no double-struck 1, and sets bars as if they were relations."""
    made = convert(latex.replace(r"\mathbb{1}", "𝟙"), display=display)
    return BAR.sub(r'<mo stretchy="false" lspace="0" rspace="0">&#x0007C;</mo>', made)


def block(latex: str) -> str:
    """A formula on a line of its own; a blank line begins the next one."""
    lines = [part for part in re.split(r"\n\s*\n", latex.strip()) if part]
    return '<div class="math">' + "".join(mathml(line, "block") for line in lines) + "</div>"


def rendered(markdown: str) -> str:
    """The page with its formulas as MathML; what stands in other fences is left alone."""
    out, at = [], 0
    for fence in FENCE.finditer(markdown):
        whole = block(fence["body"]) if fence["kind"].strip() == "math" else fence[0]
        out += [_lines(markdown[at : fence.start()]), whole]
        at = fence.end()
    return "".join([*out, _lines(markdown[at:])])


def _lines(markdown: str) -> str:
    return INLINE.sub(lambda found: mathml(found[1]), markdown)
