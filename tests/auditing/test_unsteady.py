"""An audit of a model whose outputs move from call to call says so, and gives no verdict."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import veridical as vd
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
        task = vd.Task(Unsteady(batch), torch.randn(16, 6))
    audit = vd.audit(task, explainers=["input_x_gradient", "saliency"], effort="glance", concepts=())
    assert audit.best is None
    assert str(audit).count(f"No verdict: {WORDS}") == 1
    assert not any(place.trusted or place.tests for place in audit.verdict.places)
    assert all(len(task) == scores.flagged[UNSTEADY] for scores in audit.evaluation.scores.values())
    assert "steadiness" in [check.name for check in audit.checks.failed]
    write_folder(audit, tmp_path / "audit")
    written = json.loads((tmp_path / "audit" / "report.json").read_text())
    assert WORDS in json.dumps(written["verdict"])
    assert any(each["name"] == "steadiness" for each in written["checks"])
    assert any(UNSTEADY in json.dumps(each) for each in written["flags"])
    assert WORDS in (tmp_path / "audit" / "index.html").read_text().replace("&#39;", "'")
