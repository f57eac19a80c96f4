"""`veridical audit` from a shell."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

import veridical.cli.audit  # noqa: F401 (registers the command)
from veridical.cli.app import app

ARGUMENTS = ["audit", "--task", "known/linear", "-e", "saliency", "-e", "input_x_gradient", "-n", "16"]


def test_an_audit_writes_its_verdict(tmp_path):
    result = CliRunner().invoke(app, [*ARGUMENTS, "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "input_x_gradient" in result.output
    assert str(tmp_path / "index.html") in result.output.replace("\n", "")
    assert json.loads((tmp_path / "audit.json").read_text())["ranking"]
    for name in ("index.html", "report.json", "ranking.csv", "scores.csv"):
        assert (tmp_path / name).stat().st_size > 0


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (["--effort", "lazy"], "lazy"),
        (["--concepts", "astrology"], "astrology"),
        (["-e", "no_such"], "no_such"),
    ],
)
def test_mistakes_are_one_clear_line(extra, said, tmp_path):
    result = CliRunner().invoke(app, [*ARGUMENTS, "--out", str(tmp_path), *extra])
    assert result.exit_code != 0
    assert said in str(result.exception)
