"""A study that names a model and a file of data, under the trust rules of the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from typer.testing import CliRunner

import veridical as vd
import veridical.cli.study
from veridical.cli.app import app
from veridical.data import load_task
from veridical.errors import InputError
from veridical.study.plan import make_plan
from veridical.study.study_file import parse_study, read_study

RNG = np.random.default_rng(0)
X = pd.DataFrame(RNG.normal(size=(40, 3)), columns=["age", "dose", "noise"])
Y = np.where(X.age - X.dose > 0, "ill", "well")

STUDY = """
tasks: [{{model: {model}, data: rows.csv, train: rows.csv, labels: state{more}}}]
explainers: [exact_shapley, random]
metrics: [pixel_flipping]
samples: 12
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    joblib = pytest.importorskip("joblib")
    joblib.dump(LogisticRegression().fit(X, Y), tmp_path / "model.joblib")
    X.assign(state=Y).to_csv(tmp_path / "rows.csv", index=False)
    (tmp_path / "study.yaml").write_text(STUDY.format(model="model.joblib", more=""))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_study_is_the_task_of_the_command_line(here: Path) -> None:
    study = vd.study.run("study.yaml", "out", workers=1, allow_code=True, progress=False)
    assert study.status().complete
    task = load_task(
        "model.joblib", "rows.csv", train="rows.csv", labels="state", allow_code=True, samples=12
    )
    table = study.frame()
    mean = table[table.explainer == "exact_shapley"].value.mean()
    assert mean == pytest.approx(vd.score("pixel_flipping", task, "exact_shapley").mean(), abs=1e-6)
    assert set(table.task) == {"model on rows"}
    assert study.plan.uncached == []


def test_a_pickle_runs_only_when_allowed(here: Path) -> None:
    with pytest.raises(InputError, match=r"study.yaml:2: .*model.joblib is refused.*--allow-code"):
        make_plan(read_study("study.yaml"))
    result = CliRunner().invoke(app, ["run", "study.yaml", "--workers", "1"])
    assert isinstance(result.exception, InputError)
    assert not (here / "study_study").exists()


def test_an_architecture_is_code(here: Path) -> None:
    torch.save(torch.nn.Linear(3, 2).state_dict(), "w.pt")
    text = STUDY.format(model="w.pt", more=", arch: 'evil:build'")
    with pytest.raises(InputError, match="evil:build' is refused: importing it runs"):
        make_plan(parse_study(text))


def test_a_changed_model_file_is_another_task(here: Path) -> None:
    first = make_plan(read_study("study.yaml"), allow_code=True)
    pytest.importorskip("joblib").dump(LogisticRegression(C=0.01).fit(X, Y), "model.joblib")
    second = make_plan(read_study("study.yaml"), allow_code=True)
    assert {c.hash for c in first.cells()}.isdisjoint({c.hash for c in second.cells()})


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ("{model: m.onnx}", "a model: needs data:"),
        ("{data: rows.csv}", "give one of name:"),
        ("{name: digits, data: rows.csv}", "data describe a model of your own"),
        ("{name: digits, model: m.onnx, data: rows.csv}", "give one of name:"),
        ("{model: m.onnx, data: rows.csv, kind: pickle}", "kind"),
        ("{model: m.onnx, data: rows.csv, lables: y}", "no such key"),
        ("{model: gone.onnx, data: rows.csv}", "there is no file or folder"),
        ("{model: model.joblib, data: gone.csv}", "gone.csv"),
    ],
)
def test_mistakes_are_told_with_their_line(here: Path, task: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as error:
        make_plan(parse_study(f"tasks: [{task}]\nexplainers: [random]\nmetrics: [sparseness]\n", "s.yaml"))
    assert "s.yaml:1" in str(error.value)
