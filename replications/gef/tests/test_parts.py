"""The replication's own pieces: features of Adult, replies kept by prompt, orders of explainers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from replications.gef import data, run
from replications.gef.llm import study as llm

pytestmark = pytest.mark.slow
LINES = """|1x3 Cross validator
39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, United-States, <=50K
52, Private, 209642, HS-grad, 9, Married-civ-spouse, Exec-managerial, Husband, Black, Male, 0, 5, 45, Cuba, >50K.
"""  # noqa: E501 (as the table has it)


def test_adult_has_six_numbers_and_seven_truths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "adult").mkdir()
    (tmp_path / "adult" / "adult.test").write_text(LINES)
    monkeypatch.setenv("VERIDICAL_DATA", str(tmp_path))
    features, labels = data._adult("adult.test")
    assert features.tolist() == [
        [39, 77516, 13, 2174, 0, 40, 0, 1, 1, 1, 1, 1, 1],
        [52, 209642, 9, 0, 5, 45, 1, 0, 0, 0, 0, 1, 0],
    ]
    assert labels.tolist() == [0, 1]


def test_replies_are_asked_once_and_survive_the_end_of_the_time(tmp_path: Path) -> None:
    asked: list[str] = []

    def generate(prompt: str) -> str:
        asked.append(prompt)
        return f"answer to {prompt}"

    first = llm.Remembered(generate, tmp_path / "replies.json", seconds=60)
    assert [first(p) for p in ("a", "b", "a")] == ["answer to a", "answer to b", "answer to a"]
    assert asked == ["a", "b"]
    late = llm.Remembered(generate, tmp_path / "replies.json", seconds=-1)
    assert late("b") == "answer to b"
    with pytest.raises(llm.OutOfTimeError):
        late("c")


def test_forms_that_rank_alike_agree() -> None:
    means = {"A": 0.1, "B": 0.5, "C": 0.9}
    same = {label: {"mean": value} for label, value in means.items()}
    turned = {label: {"mean": -value} for label, value in means.items()}
    found = run.agreements({"fast": same, "arc": same, "reference": turned}, ("A", "B", "C", "not there"))
    assert found["order by fast"] == ["C", "B", "A"]
    assert found["fast and arc"] == {"spearman": pytest.approx(1), "kendall": pytest.approx(1)}
    assert found["fast and reference"]["spearman"] == pytest.approx(-1)


def test_paths_that_fall_are_counted() -> None:
    rising, falling = [0.0, 1.0, 2.0], [0.0, 2.0, 1.0]
    found = run.model_path(torch.tensor([[rising, falling]], dtype=torch.float64))
    assert found["paths that fall somewhere"] == 0.5
    assert found["model distortion by level"] == pytest.approx([0, 0.75, 0.75])
