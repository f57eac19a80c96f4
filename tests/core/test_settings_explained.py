"""Every setting says what it is: a sentence under the field, found by reading the source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import veridical

SOURCE = Path(veridical.__file__).parent
ROOTS = {"Settings", "Plan", "Effort", "Strict"}
"""Roots: metrics, explainers and fills; how a model is run; how much an audit does; a study file."""


def settings_classes(trees: dict[str, ast.Module]) -> Iterator[tuple[str, ast.ClassDef]]:
    """The roots and all that derives from them, however far, with the file that holds each."""
    known = [(file, node) for file, tree in trees.items() for node in ast.walk(tree) if _is_class(node)]
    found = set(ROOTS)
    while more := {node.name for _, node in known if found & set(_bases(node))} - found:
        found |= more
    for file, node in known:
        if node.name in ROOTS or found & set(_bases(node)):
            yield file, node


def unexplained(node: ast.ClassDef) -> Iterator[str]:
    """The fields of a class under which no sentence stands, or none that says more than the name."""
    for line, after in pairwise([*node.body, ast.Pass()]):
        if isinstance(line, ast.AnnAssign) and "ClassVar" not in ast.unparse(line.annotation):
            field = ast.unparse(line.target)
            if not says_something(_text(after), field):
                yield field


def says_something(text: str, field: str) -> bool:
    """Whether a text has a word that the field's name has not, and ends as a sentence does."""
    return bool(_words(text) - _words(field) - {"a", "an", "the"}) and text.rstrip().endswith(".")


def _is_class(node: ast.AST) -> bool:
    return isinstance(node, ast.ClassDef)


def _bases(node: ast.ClassDef) -> list[str]:
    """The last part of each base's name: Metric of `base.Metric` and of `Metric[int]`."""
    plain = (base.value if isinstance(base, ast.Subscript) else base for base in node.bases)
    return [ast.unparse(base).rpartition(".")[2] for base in plain]


def _text(node: ast.stmt) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return str(node.value.value)
    return ""


def _words(text: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", text.lower().replace("_", " ")))


def _trees() -> dict[str, ast.Module]:
    return {str(file.relative_to(SOURCE)): ast.parse(file.read_text()) for file in SOURCE.rglob("*.py")}


def test_every_setting_is_explained() -> None:
    classes = list(settings_classes(_trees()))
    missing = [f"{file}: {node.name}.{name}" for file, node in classes for name in unexplained(node)]
    assert not missing, "say under each field what it is:\n" + "\n".join(sorted(missing))


def test_the_search_finds_the_settings_there_are() -> None:
    """A search that finds nothing would pass too: names from each corner, near the root and far from it."""
    names = {node.name for _, node in settings_classes(_trees())}
    assert {
        "Plan",
        "Effort",
        "Limits",
        "GEF",
        "FFidMinus",
        "Relative",
        "HUMCD",
        "SmoothGrad",
        "Road",
    } <= names


def test_what_counts_as_an_explanation() -> None:
    source = '''
class Toy(base.Settings):
    told: int = 1
    """How many there are."""
    bare: int = 2
    empty: int = 3
    """"""
    the_name: int = 4
    """The name."""
    loose: int = 5  # a comment is not enough
    fact: ClassVar[int] = 6
    last: int = 7
class Far(Toy[int]):
    far: int = 8
class Other:
    free: int = 9
'''
    found = list(settings_classes({"toy.py": ast.parse(source)}))
    assert [name for _, node in found for name in unexplained(node)] == [
        "bare", "empty", "the_name", "loose", "last", "far"
    ]  # fmt: skip
