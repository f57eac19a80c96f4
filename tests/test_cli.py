"""The command line: what it prints, what it writes, and how it refuses."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import joblib
import numpy as np
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


def test_explain_says_what_it_found_and_writes_it_in_every_form(tmp_path: Path) -> None:
    files = [tmp_path / f"maps.{kind}" for kind in ("safetensors", "png", "html", "json")]
    outs = [word for file in files for word in ("-o", str(file))]
    text = " ".join(run("explain", "integrated_gradients", "-n", "4", *outs).split())
    assert "Explanation by integrated_gradients: 4 samples" in text
    task = vd.tasks.load("digits", samples=4)
    maps = vd.Explanation.load(files[0])
    assert files[1].read_bytes().startswith(b"\x89PNG")
    told = json.loads(files[3].read_text())["samples"]
    for sample in range(4):
        target, id_ = int(task.targets[sample]), int(task.ids[sample])
        value = float(task.outputs.softmax(-1)[sample, target])
        said = f"output {target}, probability {value:.3f}"
        assert (f"sample {id_}: {said}" in text) == (sample < 3)
        assert f"Sample {id_} <small>{said}" in files[2].read_text()
        assert told[sample]["id"] == id_
        assert told[sample]["response"] == pytest.approx(value, rel=1e-6)
        features = dict(told[sample]["features"])
        names = [maps.space.feature_name(i, sample) for i in range(maps.space.n_features)]
        assert [features[n] for n in names] == pytest.approx(maps.values[sample].tolist(), rel=1e-5)


def test_explain_names_classes_and_columns(tmp_path: Path) -> None:
    from sklearn.tree import DecisionTreeClassifier

    rows = pd.DataFrame({"age": [1.0, 2, 3, 4] * 5, "dose": [0.0, 1] * 10})
    model = DecisionTreeClassifier(random_state=0).fit(rows, np.where(rows.age > 2, "ill", "well"))
    joblib.dump(model, tmp_path / "model.joblib")
    rows.to_csv(tmp_path / "rows.csv", index=False)
    own = ["--model", str(tmp_path / "model.joblib"), "--data", str(tmp_path / "rows.csv"), "--allow-code"]
    text = run("explain", "occlusion", *own, "-n", "4", "--show", "4")
    assert re.search(r"sample \d+: (ill|well), probability 0.9", text)
    assert re.search(r"age [+-]\d", text)


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
