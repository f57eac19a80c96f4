"""A new metric or explainer is one new file and one line: a copy of the package finds and checks it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import veridical as vd
from veridical.testing import MODALITIES

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path(vd.__file__).parent
PAGE = (ROOT / "docs" / "how-to" / "add-a-metric.md").read_text()
METRIC = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[0]
EXPLAINER = '''"""The gradient, squared."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from veridical.explainers.base import Explainer, register
from veridical.explainers.gradients import gradient
from veridical.core.key import Key
from veridical.values.task import Task


@register
@dataclass(frozen=True)
class SquaredGradient(Explainer):
    """The gradient, squared."""

    name: ClassVar[str] = "squared_gradient"
    summary: ClassVar[str] = "How steep is the response, whichever way?"
    paper: ClassVar[str] = "the example of a test"
    needs: ClassVar[frozenset[str]] = frozenset({"gradient"})

    def attribute(self, task: Task, key: Key) -> Tensor:
        """The maps of a task that fits one chunk."""
        return gradient(task).square()
'''
USE = """
import sys
import veridical as vd
task = vd.tasks.load("digits")[:4]
by_name = vd.score("half_removed", task, "squared_gradient", share=0.25)
assert not any(name.endswith((".deletion", ".lrp")) for name in sys.modules), "one name, one file"
from veridical.explainers import SquaredGradient
from veridical.metrics import HalfRemoved
from veridical.metrics.faithfulness import HalfRemoved as same
assert same is HalfRemoved
assert by_name.values.equal(vd.score(HalfRemoved(share=0.25), task, SquaredGradient()).values)
assert "relevant half" in vd.list_metrics()["half_removed"]
assert "How steep" in vd.list_explainers()["squared_gradient"]
assert "half_removed" in vd.list_metrics.__globals__["metric_registry"]
assert "squared_gradient" in vd.explainers.applicable(task)
assert vd.score("qge:half_removed", task, "inverse:squared_gradient").values.isfinite().all()
from veridical.testing import check_explainer, check_metric
print(*check_metric(HalfRemoved()), "|", *check_explainer(SquaredGradient()))
"""
LINES = """\
    "veridical.explainers.squared": ("squared_gradient", "SquaredGradient"),
    "veridical.metrics.faithfulness.half_removed": ("half_removed", "HalfRemoved"),
"""
# the tests that look at everything registered
EVERYTHING = (
    "tests/test_battery.py",
    "tests/docs/test_cards.py",
    "tests/study/test_golden.py",
    "tests/explainers/test_every.py",
    "tests/report/test_parts.py",
)


def enlarged(folder: Path) -> Path:
    """A copy of the package with two more files, in a folder that can be put first on the path."""
    shutil.copytree(PACKAGE, folder / "src" / "veridical")
    (folder / "src/veridical/metrics/faithfulness/half_removed.py").write_text(METRIC)
    (folder / "src/veridical/explainers/squared.py").write_text(EXPLAINER)
    names = folder / "src/veridical/core/names.py"
    names.write_text(names.read_text().replace(" = {\n", f" = {{\n{LINES}"))
    return folder / "src"


def run(folder: Path, path: Path, *command: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def test_one_file_is_a_metric_and_one_an_explainer(tmp_path: Path) -> None:
    assert "half_removed" not in vd.list_metrics()
    kinds = run(tmp_path, enlarged(tmp_path), "-c", USE)
    assert [set(each.split()) for each in kinds.split("|")] == [set(MODALITIES)] * 2


@pytest.mark.slow
def test_every_test_that_looks_at_all_of_them_takes_the_new_ones(tmp_path: Path) -> None:
    path = enlarged(tmp_path)
    for folder in ("tests", "benchmarks", "docs", "scripts"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    chosen = ("-m", "not slow and not extras and not gpu", "-p", "no:cacheprovider")
    names = "half_removed or squared_gradient or every or golden or facts"
    said = run(tmp_path, path, "-m", "pytest", "-v", *EVERYTHING, *chosen, "-k", names)
    for name in ("half_removed", "squared_gradient"):
        assert len(re.findall(rf"promises\[{name}-\w+\] PASSED", said)) == len(MODALITIES)
    pages = run(tmp_path, path, "-m", "scripts.docs_site", "half_removed", "squared_gradient")
    assert pages.count("## Example") == 2
    run(tmp_path, path, "scripts/renew_golden_scores.py", "--new")
    assert '"metric/half_removed"' in (tmp_path / "tests" / "data" / "golden_scores.json").read_text()
