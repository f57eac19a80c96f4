"""The paths of four users, run as they stand in examples/users, each with an answer that is known."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

import veridical.cli  # noqa: F401 (adds all commands)
from tests.data_tests.test_huggingface import (  # noqa: F401 (fixtures)
    DECISIVE,
    NAMES,
    NEUTRAL,
    random_bert,
    transformers,
)
from veridical.cli.app import app

pytestmark = [pytest.mark.extras, pytest.mark.filterwarnings("ignore")]
USERS = Path(__file__).resolve().parents[1] / "examples" / "users"
STUDY = """
tasks: [{model: model.joblib, data: patients.csv, train: patients.csv, labels: state}]
explainers: [exact_shapley, random]
metrics: [pixel_flipping]
samples: 12
"""


def sentences(count: int, seed: int) -> tuple[list[str], list[int]]:
    """Sentences of neutral words with one that decides, and their classes."""
    rng = np.random.default_rng(seed)
    texts, labels = [], rng.integers(0, 2, count).tolist()
    for label in labels:
        words = list(rng.choice(NEUTRAL, rng.integers(2, 6)))
        words.insert(rng.integers(0, len(words) + 1), str(rng.choice(DECISIVE[label])))
        texts.append(" ".join(words))
    return texts, labels


@pytest.fixture
def trained_bert(tmp_path: Path, random_bert, transformers) -> Path:  # noqa: F811
    """A folder with a tiny classifier after some seconds of training, beside a file of reviews."""
    folder = tmp_path / "trained"
    tokenizer = transformers.AutoTokenizer.from_pretrained(random_bert)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(random_bert).train()
    texts, labels = sentences(128, 1)
    batch, truth = tokenizer(texts, padding=True, return_tensors="pt"), torch.tensor(labels)
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(40):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(**batch).logits, truth).backward()
        optimiser.step()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    rows = [
        json.dumps({"text": t, "label": NAMES[label]}) for t, label in zip(*sentences(60, 2), strict=True)
    ]
    (tmp_path / "reviews.jsonl").write_text("\n".join(rows))
    return folder


def followed(name: str) -> dict[str, Any]:
    scope: dict[str, Any] = {}
    exec(compile((USERS / name).read_text(), name, "exec"), scope)
    return scope


@pytest.fixture
def patients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pd.DataFrame:
    """Eight columns of which the first two decide; a tenth of all values is missing."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(300, 6)), columns=["age", "dose", "n1", "n2", "n3", "n4"])
    state = np.where(2 * frame.age - frame.dose > 0, "ill", "well")
    frame = frame.mask(rng.random(frame.shape) < 0.1).assign(state=state)
    frame.to_csv("patients.csv", index=False)
    return frame


def beats(table: Any, better: str, worse: str, metric: str) -> bool:
    """Whether the first method is ahead by more than twice the standard error of the differences."""
    a, b = (table.scores[name, metric] for name in (better, worse))
    gap = a.values - b.values if a.direction == "higher" else b.values - a.values
    return bool(gap.mean() > 2 * gap.std() / len(gap) ** 0.5)


def test_text(tmp_path: Path, trained_bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my-classifier").symlink_to(trained_bert)
    found = followed("text.py")
    decisive = {word for words in DECISIVE for word in words}
    # the classifier calls sentences without any such word positive, so good ones need not count
    largest = max(value for _, value in found["words"])
    counted = [word for word, value in found["words"] if value > largest / 2]
    assert len(counted) >= 6
    assert set(counted) <= decisive
    for name in ("occlusion", "integrated_gradients"):
        assert beats(found["table"], name, "random", "comprehensiveness")


def test_table(patients: pd.DataFrame) -> None:
    pytest.importorskip("shap")
    table = followed("table.py")["table"]
    assert not table.failures
    for name in ("exact_shapley", "tree_shap"):
        assert beats(table, name, "random", "pixel_flipping")
        values = table.explanations[name].values.abs().mean(0)
        assert set(values.topk(2).indices.tolist()) == {0, 1}


def test_vision() -> None:
    pytest.importorskip("captum")
    table = followed("vision.py")["table"]
    assert not table.failures
    for name in ("mine", "captum"):
        assert beats(table, name, "random", "pixel_flipping")


def test_shell(patients: pd.DataFrame) -> None:
    from sklearn.ensemble import HistGradientBoostingClassifier

    model = HistGradientBoostingClassifier(max_iter=20).fit(patients.drop(columns="state"), patients.state)
    pytest.importorskip("joblib").dump(model, "model.joblib")
    Path("study.yaml").write_text(STUDY)
    for line in (USERS / "shell.sh").read_text().splitlines():
        if line.startswith("veridical"):
            done = CliRunner().invoke(app, shlex.split(line)[1:], env={"COLUMNS": "200"})
            assert done.exit_code == 0, done.output + repr(done.exception)
    best = Path("scores.md").read_text()
    assert "**" in next(line for line in best.splitlines() if "exact_shapley" in line)
    assert "**" not in next(line for line in best.splitlines() if "random" in line)
    assert Path("study_study").is_dir()
