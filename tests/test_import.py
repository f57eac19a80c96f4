"""Importing veridical is cheap: what a call does not need is not loaded. No name hides a package."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest

import veridical as vd

HEAVY = ("sklearn", "scipy", "pandas", "matplotlib", "pyarrow", "captum", "transformers")

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

ROOT = """
Task Space Plan Explanation Scores Evaluation Explainer Metric
explain score evaluate audit check register list_metrics list_explainers
fills tasks gef qge fidelity concepts meta dictionaries
"""


def loaded(code: str, *given: str) -> list[str]:
    """Which heavy packages a fresh interpreter has loaded after this code."""
    env = {"PYTHONPATH": str(Path(vd.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, "-c", code, *given], capture_output=True, text=True, env=env, check=False
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.split()


def test_importing_loads_nothing_heavy() -> None:
    assert loaded(IMPORT) == []


def test_explaining_and_scoring_load_nothing_heavy_either() -> None:
    assert loaded(USE) == []


BARE = """
import sys
from pathlib import Path
sys.modules |= dict.fromkeys(("PIL", "matplotlib", "skimage", "transformers", "captum", "shap", "tokenizers"))
import torch
import veridical as vd
from veridical.cli.app import save_plot
from veridical.report.audit import write_audit
task = vd.tasks.load("digits", samples=24)
audit = vd.audit(task, explainers=["gradient"], effort="glance", progress=False)
page = write_audit(audit, Path(sys.argv[1]) / "page.html").read_text()
assert "image/png" in page
save_plot(lambda: vd.explain("gradient", task).plot(), Path("drift.png"))
"""


def test_audits_and_their_reports_need_no_extra(tmp_path: Path) -> None:
    said = loaded(BARE, str(tmp_path))
    assert " ".join(said).startswith("drift.png is left out: this needs the package 'matplotlib'")


def test_the_root_has_24_names() -> None:
    assert sorted(vd.__all__) == sorted(ROOT.split())
    assert len(vd.__all__) == 24
    assert all(hasattr(vd, name) for name in vd.__all__)


PACKAGES = [info.name for info in iter_modules(vd.__path__) if info.name != "__main__"]


@pytest.mark.parametrize("name", PACKAGES)
def test_no_name_at_the_root_hides_a_package(name: str) -> None:
    module = import_module(f"veridical.{name}")
    assert module is sys.modules[f"veridical.{name}"]
    assert getattr(vd, name) is module


OURS = """
import sys, torch
import veridical as vd
def ours():
    return {name for name in sys.modules if name.startswith("veridical.")}
first = ours()
task = vd.Task(torch.nn.Linear(4, 3), torch.ones(2, 4))
vd.score("pixel_flipping", task, "occlusion")
print(len(first), *sorted(ours() - first))
"""


def test_the_first_score_loads_the_metric_and_the_explainer_it_names() -> None:
    at_import, *later = loaded(OURS)
    assert int(at_import) < 95
    assert {"veridical.explainers.occlusion", "veridical.metrics.faithfulness.pixel_flipping"} <= set(later)
    assert len(later) < 12


def test_names_of_packages_are_found_listed_and_missed() -> None:
    from veridical.explainers.lrp import Lrp
    from veridical.metrics import PixelFlipping
    from veridical.metrics.faithfulness import PixelFlipping as OfFamily

    assert OfFamily is PixelFlipping
    assert vd.explainers.Lrp is Lrp
    assert {"Lrp", "backprop", "from_captum", "registry"} <= set(dir(vd.explainers))
    assert vd.explainers.backprop is sys.modules["veridical.explainers.backprop"]
    for module, name in ((vd.explainers, "Lpr"), (vd, "gfe"), (vd.fidelity, "fid")):
        with pytest.raises(AttributeError, match=f"has no attribute '{name}'"):
            getattr(module, name)


def test_the_table_of_names_is_up_to_date() -> None:
    from scripts.renew_names import table
    from veridical.core.names import TABLE

    found = table()
    assert found == TABLE, (
        "core/names.py is out of date: run python -m scripts.renew_names; "
        f"it differs in {sorted(dict(found.items() ^ TABLE.items()))}"
    )


def test_a_name_of_ours_is_taken_before_ours_are_loaded() -> None:
    code = """
import veridical as vd
class Mine(vd.Metric):
    name = "deletion"
try:
    vd.register(Mine)
except vd.errors.InputError as error:
    print("taken" if "registered already" in str(error) else error)
"""
    assert loaded(code) == ["taken"]
