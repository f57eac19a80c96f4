"""`veridical doctor`: what it says of a model and data, and that nothing is written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from typer.testing import CliRunner

import veridical as vd
import veridical.cli.doctor
from veridical.cli.app import app
from veridical.data import load_task
from veridical.data.diagnosis import diagnose
from veridical.errors import InputError
from veridical.explainers import applicable

RNG = np.random.default_rng(0)
X = pd.DataFrame(RNG.normal(size=(40, 3)), columns=["age", "dose", "noise"])
Y = (X.age > X.dose).astype(int)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("joblib").dump(LogisticRegression().fit(X, Y), tmp_path / "m.joblib")
    X.assign(label=Y).to_csv(tmp_path / "rows.csv", index=False)
    X.assign(label=1 - Y).to_csv(tmp_path / "swapped.csv", index=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(*words: str):
    return CliRunner().invoke(app, ["doctor", *words], env={"COLUMNS": "200"})


def test_a_healthy_task(here: Path) -> None:
    before = sorted(here.iterdir())
    told = call("m.joblib", "rows.csv", "--train", "rows.csv", "--allow-code")
    assert told.exit_code == 0, told.output
    for word in (
        "40 samples of (3,)",
        "exact_shapley",
        "pixel_flipping",
        "nothing stands in the way",
        "standard",
    ):
        assert word in told.output
    assert "the model is not a torch function" in told.output
    assert sorted(here.iterdir()) == before


def test_options_say_the_same_as_arguments(here: Path) -> None:
    arguments = call("m.joblib", "rows.csv", "--allow-code", "-n", "8")
    options = call("--model", "m.joblib", "--data", "rows.csv", "--allow-code", "-n", "8")
    assert options.exit_code == arguments.exit_code
    assert options.output.splitlines()[0] == arguments.output.splitlines()[0]
    assert "veridical doctor MODEL DATA" in str(call().exception)
    assert "--model needs --data" in str(call("m.joblib").exception)


def test_code_is_refused_before_it_runs(here: Path) -> None:
    assert isinstance(call("m.joblib", "rows.csv").exception, InputError)


def test_what_should_be_looked_at_first(here: Path) -> None:
    told = call("m.joblib", "swapped.csv", "--allow-code", "-n", "8", "--out", "rows.csv")
    assert told.exit_code == 1
    for word in (
        "hardly more than guessing",
        "no reference rows",
        "8 samples are few",
        "no folder that you may",
    ):
        assert word in told.output, told.output


def test_every_explainer_and_metric_is_told_once_and_costs_what_it_asks(here: Path) -> None:
    task = load_task("m.joblib", "rows.csv", train="rows.csv", allow_code=True, samples=6)
    found = diagnose(task)
    assert sorted(found.rows) == sorted(applicable(task))
    assert not set(found.left_out) & (set(found.rows) | set(found.metrics))
    assert {*found.left_out, *found.rows, *found.metrics} >= {*vd.list_explainers(), *vd.list_metrics()}
    for name in ("occlusion", "exact_shapley", "shapley_sampling"):
        fresh = task.changed(alone=True)
        asked = vd.explain(name, fresh).cost.forward / len(task)
        assert found.rows[name] == pytest.approx(asked, rel=0.5), name
    assert 0 < found.seconds_per_row < 1
    for name in ("pixel_flipping", "deletion", "sparseness"):
        asked = vd.score(name, task.changed(alone=True), "random").cost.forward / len(task)
        assert found.metrics[name] == pytest.approx(asked, rel=0.5, abs=2), name
    assert found.minutes(60 / found.seconds_per_row) == pytest.approx(1)


def test_audits_are_forecast(here: Path) -> None:
    task = load_task("m.joblib", "rows.csv", train="rows.csv", allow_code=True)
    found = veridical.cli.doctor._audits(task)
    expected = vd.audit(task, effort="glance", dry_run=True)
    assert list(found) == ["glance", "quick", "standard"]
    assert found["glance"] == (expected.cost.forward // 24, expected.cost.forward)
    assert veridical.cli.doctor._audits(task[:1]) == {}


def test_what_was_not_tried_says_why(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veridical.data.diagnosis.METRIC_SECONDS", 0.0)
    told = call("m.joblib", "rows.csv", "--allow-code", "-n", "4").output
    assert "pixel_flipping" in next(line for line in told.splitlines() if "not tried: 0 s were over" in line)
    assert "max_sensitivity" in next(line for line in told.splitlines() if "come on top" in line)
