"""Settings of a metric or explainer as a table: name, default, and the sentence under the field."""

from __future__ import annotations

import ast
import html
import inspect
import re
import textwrap
from dataclasses import MISSING, fields
from itertools import pairwise
from typing import Any


def explained(kind: type) -> dict[str, str]:
    """The string under each field, those of base classes included."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not base.__module__.startswith("veridical"):
            continue
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(node, ast.ClassDef)
        for line, after in pairwise([*node.body, ast.Pass()]):
            if isinstance(line, ast.AnnAssign) and isinstance(after, ast.Expr):
                found[ast.unparse(line.target)] = " ".join(str(ast.literal_eval(after.value)).split())
    return found


def lines(kind: Any) -> list[str]:
    """The table in Markdown; a sentence where there is nothing to set."""
    words = explained(kind)
    rows = []
    for field in fields(kind):
        if not field.init:
            continue
        if field.default is not MISSING:
            default = code(repr(field.default))
        elif field.default_factory is not MISSING:
            default = code(repr(field.default_factory()))
        else:
            default = "required"
        rows.append(f"| {code(field.name)} | {default} | {cell(words.get(field.name, ''))} |")
    if not rows:
        return ["There is nothing to set."]
    return ["| setting | default | what it is |", "|---|---|---|", *rows]


def code(text: str) -> str:
    """Code in a cell that a narrow screen breaks between words, not inside them."""
    said = "".join(f"&#{ord(one)};" if one in "_*|`\\[]" else html.escape(one) for one in text)
    broken = re.sub(r"((?:&#95;)+|[(=,])", r"\1<wbr>", said)
    return f'<code class="name">{broken}</code>'


def cell(text: str) -> str:
    """Text that stays inside one cell of a table."""
    return text.replace("|", "\\|")
