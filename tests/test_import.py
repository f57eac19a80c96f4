"""Importing veridical is cheap: what a verb does not need is not loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import veridical as vd

HEAVY = ("sklearn", "scipy", "pandas", "matplotlib", "duckdb", "pyarrow", "captum", "transformers")

IMPORT = f"""
import sys
import veridical as vd
print(*[name for name in {HEAVY!r} if name in sys.modules])
"""

USE = f"""
import sys, torch
import veridical as vd
task = vd.Task(torch.nn.Linear(4, 3), torch.ones(2, 4))
vd.explain("gradient", task)
repr(vd.score("pixel_flipping", task, "occlusion")), repr(task)
print(*[name for name in {HEAVY!r} if name in sys.modules])
"""


def loaded(code: str) -> list[str]:
    """Which heavy packages a fresh interpreter has loaded after this code."""
    env = {"PYTHONPATH": str(Path(vd.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.split()


def test_importing_loads_nothing_heavy() -> None:
    assert loaded(IMPORT) == []


def test_explaining_and_scoring_load_nothing_heavy_either() -> None:
    assert loaded(USE) == []


def test_the_check_finds_what_it_looks_for() -> None:
    assert loaded("import scipy\n" + IMPORT.replace("import veridical as vd", "")) == ["scipy"]


def test_everything_public_is_there() -> None:
    assert all(hasattr(vd, name) for name in vd.__all__)
    promised = "Task Explanation Scores Space explain score evaluate explainers metrics tasks register fill"
    assert set(promised.split()) <= set(vd.__all__)
