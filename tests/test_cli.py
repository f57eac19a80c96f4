"""The command line: what it prints, what it writes, and how it refuses."""

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

import veridical as vd
from veridical.cli.app import app

runner = CliRunner()


def run(*words: str, code: int = 0) -> str:
    result = runner.invoke(app, list(words), env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output + repr(result.exception)
    return result.output


def test_list_names_everything_with_its_kinds() -> None:
    text = run("list")
    for name in ("integrated_gradients", "pixel_flipping", "digits"):
        assert name in text
    assert "[image, series]" in text
    assert "pixel_flipping" not in run("list", "explainers")


def test_explain_writes_maps_and_a_picture(tmp_path: Path) -> None:
    maps, picture = tmp_path / "maps.safetensors", tmp_path / "maps.png"
    text = run("explain", "integrated_gradients", "-n", "4", "--save", str(maps), "--picture", str(picture))
    assert "Explanation by integrated_gradients: 4 samples" in text
    task = vd.tasks.load("digits", samples=4)
    target, id_ = int(task.targets[0]), int(task.ids[0])
    value = float(task.outputs.softmax(-1)[0, target])
    said = f"the first of 4 samples (id {id_}): output {target}, probability {value:.3g}"
    assert said in " ".join(text.split())
    assert len(vd.Explanation.load(maps)) == 4
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_explain_takes_settings() -> None:
    text = run("explain", "integrated_gradients", "-n", "2", "--settings", '{"steps": 4}')
    assert "8 rows forward" in " ".join(text.split())


def test_evaluate_writes_table_and_report(tmp_path: Path) -> None:
    table, report = tmp_path / "table.csv", tmp_path / "report.html"
    text = run(
        *(
            "evaluate",
            "-n",
            "6",
            "-e",
            "saliency",
            "-e",
            "random",
            "-m",
            "pixel_flipping",
            "-m",
            "sparseness",
        ),
        *("--table", str(table), "--report", str(report)),
    )
    assert "saliency" in text
    frame = pd.read_csv(table)
    assert set(frame.explainer) == {"saliency", "random"}
    assert len(frame) == 4
    assert "<h1>" in report.read_text()


def test_evaluate_says_what_chance_does() -> None:
    words = ("-n", "6", "-e", "saliency", "-m", "faithfulness_correlation", "--repeats", "3")
    text = run("evaluate", *words)
    assert "saliency by faithfulness_correlation: Variance of a score: samples" in text
    assert "3 repeats of each source" in text
    assert "fewer" not in text
    one = run("evaluate", "-n", "1", "-e", "saliency", "-m", "sparseness", "--repeats", "2")
    assert "needs two that have a score" in one


def test_a_failed_cell_shows_in_the_exit_status() -> None:
    with pytest.warns(vd.errors.VeridicalWarning, match="failed"):
        text = run(
            "evaluate", "-n", "4", "-e", "saliency", "-m", "comprehensiveness", "-m", "sparseness", code=4
        )
    assert "failed" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["evaluate", "-t", "digit"], "did you mean 'digits'"),
        (["explain", "salienc"], "did you mean 'saliency'"),
        (["explain", "gradient", "--settings", "{"], "not JSON"),
        (["list", "everything"], "list explainers, metrics, tasks"),
    ],
)
def test_mistakes_are_one_clear_line(words: list[str], message: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "veridical", *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_demo_writes_its_page(tmp_path: Path) -> None:
    text = run("demo", "--out", str(tmp_path / "out"), "-n", "8", code=3)  # too few for a verdict
    assert "The report is in" in text
    assert (tmp_path / "out" / "index.html").stat().st_size > 50_000
