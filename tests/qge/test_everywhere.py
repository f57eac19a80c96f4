"""'qge:pixel_flipping' is a metric's name wherever one is asked for, with the same values everywhere."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml
from typer.testing import CliRunner

import veridical as vd
from veridical import study as studies
from veridical.cli.app import app

SAMPLES = 6
NAMES = ["qge:pixel_flipping", "qrand:pixel_flipping", "qge:qge:insertion", "qge:max_sensitivity"]


@pytest.fixture(scope="module")
def plain() -> vd.Task:
    return vd.tasks.load("known/linear", samples=SAMPLES)


def directly(plain: vd.Task, name: str) -> torch.Tensor:
    return vd.score(name, plain, "input_x_gradient").values


def test_in_a_study_file(plain: vd.Task, tmp_path: Path) -> None:
    spec = {
        "name": "relative",
        "tasks": [{"name": "known/linear", "samples": SAMPLES}],
        "explainers": ["input_x_gradient"],
        "metrics": [*NAMES, {"name": "qge:pixel_flipping", "settings": {"steps": 2}}],
    }
    (tmp_path / "relative.yaml").write_text(yaml.safe_dump(spec))
    words = ["run", tmp_path / "relative.yaml", "--out", tmp_path / "out", "--executor", "in-process"]
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    found = studies.open(tmp_path / "out").frame()
    for name in NAMES:
        kept = torch.tensor(found[found["metric"] == name].sort_values("id")["value"].to_numpy())
        expected = directly(plain, name)[plain.ids.argsort()]
        assert torch.allclose(kept.double(), expected.double(), atol=1e-6), name
    assert (found["metric"] == "qge:pixel_flipping (steps=2)").sum() == SAMPLES
