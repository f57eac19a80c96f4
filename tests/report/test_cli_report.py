"""`veridical report`: a page from saved contents, without the model."""

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

import veridical.cli.report
from veridical.cli.app import app
from veridical.errors import InputError
from veridical.report.rendering import render, save

runner = CliRunner()
assert veridical.cli.report.report


def test_page_beside_the_contents(shown: dict[str, Any], tmp_path: Path) -> None:
    save(shown, tmp_path / "report.json")
    result = runner.invoke(app, ["report", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "index.html").read_text() == render(shown)
    assert "index.html" in result.output.replace("\n", "")


def test_markdown_somewhere_else(shown: dict[str, Any], tmp_path: Path) -> None:
    contents = save(shown, tmp_path / "in" / "report.json")
    target = tmp_path / "out" / "a.md"
    result = runner.invoke(app, ["report", str(contents), "--format", "md", "-o", str(target)])
    assert result.exit_code == 0, result.output
    assert target.read_text() == render(shown, "md")


def test_mistakes_are_told(tmp_path: Path) -> None:
    result = runner.invoke(app, ["report", str(tmp_path)])
    assert isinstance(result.exception, InputError)
    (tmp_path / "report.json").write_text(json.dumps({"kind": "audit", "format": 1}))
    result = runner.invoke(app, ["report", str(tmp_path), "-f", "pdf"])
    assert isinstance(result.exception, InputError)
