"""Deliberate errors in the formulas are caught by the tests of those formulas."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.mutants import MUTANTS, ROOT, SOURCE, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_the_text_it_changes_is_there_once(mutant: Mutant) -> None:
    assert (SOURCE / mutant.file).read_text().count(mutant.right) == 1
    assert mutant.wrong != mutant.right
    assert (ROOT / "tests" / mutant.tests).is_file()


def test_all_systems_have_some() -> None:
    tops = {mutant.file.split("/")[0] for mutant in MUTANTS}
    assert {"functional", "metrics", "gef", "qge", "fidelity", "surf", "meta"} <= tops


@pytest.mark.slow
def test_every_error_is_caught() -> None:
    done = subprocess.run(
        [sys.executable, str(Path("scripts") / "mutants.py")],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
