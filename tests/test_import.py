"""Importing veridical is cheap: what a verb does not need is not loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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


LATER = (
    "gef.metric",
    "fidelity",
    "meta",
    "qge",
    "audit.run",
    "study",
    "surf",
    "metrics.faithfulness",
    "explainers.lrp",
)


def test_the_systems_are_loaded_when_they_are_first_asked_for() -> None:
    show = f"import sys; print(*[name for name in {LATER!r} if 'veridical.' + name in sys.modules])"
    assert loaded(f"import veridical as vd\n{show}") == []
    assert loaded(f"import veridical as vd\nvd.GEF\n{show}") == ["gef.metric"]
    assert {"metrics.faithfulness", "fidelity", "qge", "gef.metric"} <= set(
        loaded(f"import veridical as vd\nvd.metrics()\n{show}")
    )


OURS = """
import sys, torch
import veridical as vd
def ours():
    named = [name for name in sys.modules if name.startswith("veridical.")]
    return {name for name in named if sys.modules[name].__name__ == name}  # not the old names of moved ones
first = ours()
task = vd.Task(torch.nn.Linear(4, 3), torch.ones(2, 4))
vd.score("pixel_flipping", task, "occlusion")
print(len(first), *sorted(ours() - first))
"""


def test_the_first_score_loads_the_metric_and_the_explainer_it_names() -> None:
    at_import, *later = loaded(OURS)
    assert int(at_import) < 95
    assert set(later) == {
        "veridical.explainers.cells",
        "veridical.explainers.coalitions",
        "veridical.explainers.occlusion",
        "veridical.metrics.faithfulness",
        "veridical.metrics.faithfulness.pixel_flipping",
    }


def test_names_stand_where_they_always_stood() -> None:
    code = """
from veridical.metrics import Complexity, Mprt, PixelFlipping, Sparseness
from veridical.metrics.faithfulness import PixelFlipping as same, Comprehensiveness
from veridical.explainers import FunctionExplainer, IntegratedGradients, LrpEpsilon, TopK, as_explainer
from veridical.explainers import degrade, from_captum, from_shap, from_zennit
from veridical import GEF, QGE, Audit, FastGEF, QRand, audit, meta_evaluate, tasks, visualise
from veridical.auditing import Effort, Verdict, check_model
import veridical as vd
assert same is PixelFlipping and PixelFlipping().name == "pixel_flipping"
assert callable(audit) and callable(visualise) and callable(meta_evaluate)
assert vd.tasks is tasks and vd.metrics is not vd.study
print("fine")
"""
    assert loaded(code) == ["fine"]


MOVED = {
    "explanation": ("values.explanation", "Explanation"),
    "fill": ("masking.fills", "Zero"),
    "imputation": ("masking.mask_aware_fills", "NeighbourMean"),
    "lots": ("random.subset_draws", "subsets"),
    "mask_rules": ("masking.rules", "RankThreshold"),
    "predictor": ("model.predictor", "Plan"),
    "probe": ("masking.probe", "probe"),
    "rng": ("random.keyed", "Key"),
    "scores": ("values.scores", "Scores"),
    "space": ("values.space", "Space"),
    "task": ("values.task", "Task"),
}


def test_modules_that_moved_are_the_same_module_under_their_old_name() -> None:
    lines = ["import sys"]
    for old, (new, name) in MOVED.items():
        lines += [
            f"import veridical.{old}, veridical.{new}",
            f"from veridical.{old} import {name} as one",
            f"from veridical.{new} import {name} as other",
            f"assert one is other and veridical.{old} is veridical.{new}",
            f"assert veridical.{old}.__spec__.name == 'veridical.{new}'",
        ]
    assert loaded("\n".join([*lines, "print('fine')"])) == ["fine"]
    assert loaded("from veridical.rng import Key; print(Key(3).seed)") == ["3"]


def test_a_verb_stays_a_verb_whichever_part_of_its_package_is_imported_first() -> None:
    parts = "import veridical.auditing.run, veridical.explainers.lrp, veridical.metrics.faithfulness.deletion"
    ask = "import veridical as vd; print(vd.audit.__name__, vd.explainers.__name__, vd.metrics.__name__)"
    assert loaded(f"{parts}\n{ask}") == ["audit", "explainers", "metrics"]
    assert loaded(f"{ask}") == ["audit", "explainers", "metrics"]


def test_names_of_parts_are_found_listed_and_missed() -> None:
    from veridical import explainers as _verb
    from veridical.explainers.lrp import Lrp

    package = sys.modules["veridical.explainers"]
    assert callable(_verb)
    assert package.Lrp is Lrp
    assert {"Lrp", "backprop", "from_captum", "registry"} <= set(dir(package))
    assert package.backprop is sys.modules["veridical.explainers.backprop"]
    for module, name in ((package, "Lpr"), (vd, "gfe"), (vd.fidelity, "fid")):
        with pytest.raises(AttributeError, match=f"has no attribute '{name}'"):
            getattr(module, name)


def test_a_name_of_ours_is_taken_before_ours_are_loaded() -> None:
    code = """
import veridical as vd
from dataclasses import dataclass
class Mine(vd.Metric):
    name = "deletion"
try:
    vd.register(Mine)
except vd.errors.InputError as error:
    print("taken" if "registered already" in str(error) else error)
"""
    assert loaded(code) == ["taken"]
