"""An audit of a model whose outputs move from call to call says so, and gives no verdict."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import veridical as vd
from veridical.cli.app import app
from veridical.errors import VeridicalWarning
from veridical.models.output_heads import UNSTEADY
from veridical.report.audit import write_folder

WORDS = "the model's outputs move by"


class Unsteady(nn.Module):
    def __init__(self, batch: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.batch = nn.Linear(6, 3), batch

    def forward(self, rows: Tensor) -> Tensor:
        rows = rows - rows.mean(0) if self.batch else nn.functional.dropout(rows, 0.3, training=True)
        outputs: Tensor = self.layer(rows)
        return outputs


@pytest.mark.parametrize("batch", [True, False])
@pytest.mark.filterwarnings("ignore::veridical.errors.VeridicalWarning")
def test_there_is_no_verdict_on_it(batch: bool, tmp_path: Path) -> None:
    torch.manual_seed(1)
    with pytest.warns(VeridicalWarning, match=UNSTEADY):
        task = vd.Task(Unsteady(batch), torch.randn(32, 6))
    audit = vd.audit(task, explainers=["input_x_gradient", "saliency"], effort="glance", concepts=())
    assert audit.best is None
    assert str(audit).count(f"No verdict: {WORDS}") == 1
    assert not any(place.trusted or place.tests for place in audit.verdict.places)
    assert not audit.evaluation.scores  # nothing is evaluated that could not be judged
    assert "steadiness" in [check.name for check in audit.checks.failed]
    write_folder(audit, tmp_path / "audit")
    written = json.loads((tmp_path / "audit" / "report.json").read_text())
    assert WORDS in json.dumps(written["verdict"])
    assert any(each["name"] == "steadiness" for each in written["checks"])
    assert WORDS in (tmp_path / "audit" / "index.html").read_text().replace("&#39;", "'")


@pytest.mark.parametrize("batch", [True, False])
@pytest.mark.filterwarnings("ignore::veridical.errors.VeridicalWarning")
def test_standing_and_meta_evaluation_say_it(batch: bool) -> None:
    task = vd.Task(Unsteady(batch), torch.randn(24, 6))
    where = vd.qge.standing(task, "pixel_flipping", "gradient", draws=4)
    assert bool(where.flags[UNSTEADY].all())
    assert UNSTEADY in str(where)
    given = {"metrics": ["sparseness"], "explainers": ["gradient", "saliency"], "draws": 1, "iterations": 1}
    found = vd.meta.meta_evaluate(task, **given, progress=False)
    assert UNSTEADY in found.remarks
    assert UNSTEADY in str(found)
    steady = vd.Task(nn.Linear(6, 3), torch.randn(24, 6))
    assert not vd.qge.standing(steady, "pixel_flipping", "gradient", draws=4).flags
    assert UNSTEADY not in vd.meta.meta_evaluate(steady, **given, progress=False).remarks


def unsteady_task(samples: int = 6) -> vd.Task:
    return vd.Task(Unsteady(batch=True), torch.randn(samples, 6))


@pytest.mark.filterwarnings("ignore::veridical.errors.VeridicalWarning")
def test_a_study_flags_every_row_and_its_page_says_it(tmp_path: Path) -> None:
    given = {
        "tasks": [{"code": "tests.auditing.test_unsteady:unsteady_task"}],
        "explainers": ["gradient"],
        "metrics": ["sparseness"],
    }
    done = vd.study.run(given, tmp_path / "s", executor="in-process", progress=False, allow_code=True)
    assert all(UNSTEADY in flags for flags in done.frame()["flags"])
    assert all(UNSTEADY in flags for flags in done.summary()["flags"])
    assert (
        CliRunner().invoke(app, ["report", str(tmp_path / "s"), "-o", str(tmp_path / "page.html")]).exit_code
        == 0
    )
    assert UNSTEADY in (tmp_path / "page.html").read_text().replace("&#39;", "'")
