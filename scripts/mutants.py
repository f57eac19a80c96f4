"""Break formulas one by one; the tests must notice each.

python scripts/mutants.py                                   every formula below, a few mutants of each
python scripts/mutants.py src/veridical/functional/kendall.py --most 20
python scripts/mutants.py --list                            what would be broken, without running a test

A mutant is made by one of a short list of operators on the syntax tree of one file: plus for minus, times for
divided by, less for less or equal, a flipped sign of what is returned, a number moved by one, `descending`
turned round. It is written into a copy of the package, where the tests of that formula must fail.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "veridical"

# where the formulas are, and the tests that answer for them
FORMULAS = {
    "functional": "tests/functional",
    "metrics/faithfulness": "tests/metrics/faithfulness",
    "metrics/robustness": "tests/metrics/robustness",
    "metrics/randomisation": "tests/metrics/randomisation",
    "metrics/complexity": "tests/metrics/complexity",
    "metrics/localisation": "tests/metrics/localisation",
    "metrics/axiomatic": "tests/metrics/axiomatic",
    "gef/noise_path.py": "tests/gef/test_path_cases.py",
    "auditing/measured_effects.py": "tests/auditing/test_measured_effects.py",
    "auditing/hidden.py": "tests/auditing/test_hidden.py",
    "explainers/training_rows.py": "tests/data_tests/test_retraining.py",
    "auditing/grade.py": "tests/auditing/test_grade.py",
}
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}


def places(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every node that an operator can change, as its number in a walk of the tree and what becomes of it."""
    documented = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for number, node in enumerate(ast.walk(tree)):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.BinOp) and type(node.op) in SWAPS and not _is_text(node):
            yield number, f"line {line}: {type(node.op).__name__} -> {SWAPS[type(node.op)].__name__}"
        elif isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
            yield number, f"line {line}: {type(node.ops[0]).__name__} -> {SWAPS[type(node.ops[0])].__name__}"
        elif isinstance(node, ast.Return) and isinstance(node.value, ast.BinOp) and not _is_text(node.value):
            yield number, f"line {line}: returns the negative"
        elif isinstance(node, ast.keyword) and node.arg == "descending":
            yield number, f"line {line}: descending turned round"
        elif isinstance(node, ast.Constant) and type(node.value) is float and id(node) not in documented:
            yield number, f"line {line}: {node.value} + 1"


def _is_text(node: ast.BinOp) -> bool:
    sides = (node.left, node.right)
    return any(isinstance(s, ast.JoinedStr) or isinstance(getattr(s, "value", None), str) for s in sides)


def broken(tree: ast.Module, number: int) -> str:
    """The source with that one node changed."""
    made = copy.deepcopy(tree)
    node = list(ast.walk(made))[number]
    if isinstance(node, ast.BinOp):
        node.op = SWAPS[type(node.op)]()  # type: ignore[assignment]
    elif isinstance(node, ast.Compare):
        node.ops[0] = SWAPS[type(node.ops[0])]()  # type: ignore[assignment]
    elif isinstance(node, ast.Return):
        assert node.value is not None
        node.value = ast.UnaryOp(ast.USub(), node.value)
    elif isinstance(node, ast.keyword):
        node.value = ast.UnaryOp(ast.Not(), node.value)
    elif isinstance(node, ast.Constant):
        node.value = node.value + 1  # type: ignore[operator]
    return ast.unparse(ast.fix_missing_locations(made))


def survives(file: Path, text: str, tests: str) -> bool:
    """Whether the tests pass on a copy of the package in which this file is broken."""
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "veridical"
        shutil.copytree(SOURCE, package, ignore=shutil.ignore_patterns("__pycache__"))
        (package / file.relative_to(SOURCE)).write_text(text)
        where = ["-o", f"pythonpath={folder} .", "-m", "not slow and not extras and not gpu"]
        run = subprocess.run(
            # the copy stands before the checkout
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", tests, *where],
            cwd=ROOT,
            env={**os.environ, "HYPOTHESIS_PROFILE": "ci"},
            capture_output=True,
        )
    return run.returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="source files; all formulas by default")
    parser.add_argument("--most", type=int, default=3, help="mutants per file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--list", action="store_true")
    chosen = parser.parse_args()
    alive = made = 0
    for folder, tests in FORMULAS.items():
        place = SOURCE / folder
        for file in sorted(place.glob("*.py")) if place.is_dir() else [place]:
            if chosen.files and file not in [f.resolve() for f in chosen.files]:
                continue
            tree = ast.parse(file.read_text())
            every = list(places(tree))
            for number, what in random.Random(f"{chosen.seed}{file.name}").sample(
                every, min(chosen.most, len(every))
            ):
                made += 1
                if chosen.list:
                    print(f"{file.relative_to(SOURCE)} {what}")
                elif survives(file, broken(tree, number), tests):
                    alive += 1
                    print(f"ALIVE  {file.relative_to(SOURCE)} {what}", flush=True)
    print(f"{made} mutants, {alive} alive")
    sys.exit(bool(alive) and not chosen.list)


if __name__ == "__main__":
    main()
