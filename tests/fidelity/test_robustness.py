"""The robustness table and its advice, on models whose answer to masks is known."""

from pathlib import Path

import pytest
import torch
from torch import nn

import veridical as vd
from veridical.errors import InputError
from veridical.fidelity import RobustnessTable, finetune, robustness_table
from veridical.fidelity.robustness import CONTROL, ORIGINAL, TUNED


class Bright(nn.Module):
    """Class 1 where at least `need` of the features are 1, plus a trainable shift of no effect."""

    def __init__(self, need: float) -> None:
        super().__init__()
        self.need = need
        self.shift = nn.Parameter(torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        margin = x.mean(1) - self.need + 0.0 * self.shift
        return torch.stack([-margin, margin], 1) * 50


def task_needing(need: float) -> vd.Task:
    x = torch.ones(30, 40)
    x[:10] = 0.0
    labels = (torch.arange(30) >= 10).long()
    return vd.Task(Bright(need), x, labels=labels, train=(x, labels), fill="zero")


def test_accuracies_follow_the_exact_share_of_features_removed(tmp_path: Path) -> None:
    task = task_needing(0.93)
    tuned = finetune(task, epochs=1, cache=tmp_path)
    found = robustness_table(task, tuned, cache=tmp_path, shares=(0.0, 0.05, 0.1))
    third = pytest.approx(1 / 3)
    assert found.accuracy[ORIGINAL] == (1.0, 1.0, third)  # 95% left is enough, 90% is not
    assert found.agreement[ORIGINAL] == (1.0, 1.0, third)
    assert set(found.accuracy) == {ORIGINAL, TUNED, CONTROL}
    frame = found.to_frame()
    assert len(frame) == 9
    assert "fine-tuning has not made it robust yet" in found.advice
    assert "fine-tuned without masks" in repr(found)


def table(original: float, tuned: float, control: float) -> RobustnessTable:
    rows = {ORIGINAL: (0.9, original), TUNED: (0.9, tuned), CONTROL: (0.9, control)}
    return RobustnessTable((0.0, 0.1), rows, rows, 100)


@pytest.mark.parametrize(
    ("original", "tuned", "control", "said"),
    [
        (0.88, 0.89, 0.88, "plain Fid is enough"),
        (0.40, 0.88, 0.45, "use FFid"),
        (0.40, 0.50, 0.45, "has not made it robust"),
        (0.40, 0.88, 0.85, "adaptation"),
    ],
)
def test_the_advice_follows_the_numbers(original: float, tuned: float, control: float, said: str) -> None:
    assert said in table(original, tuned, control).advice
    others = {"plain Fid is enough", "use FFid,", "has not made it robust", "adaptation"} - {said, said + ","}
    assert not any(other in table(original, tuned, control).advice for other in others)


def test_bad_shares_and_heads_are_refused(tmp_path: Path) -> None:
    task = task_needing(0.9)
    tuned = finetune(task, epochs=1, cache=tmp_path)
    with pytest.raises(InputError, match="masked shares"):
        robustness_table(task, tuned, shares=(0.0, 1.0))
    numbers = vd.Task(nn.Linear(4, 1), torch.randn(3, 4), head="regression", train=torch.randn(9, 4))
    with pytest.raises(InputError, match="counts right answers"):
        robustness_table(numbers)


def test_shares_of_few_features_are_whole_ones_and_never_none(tmp_path: Path) -> None:
    x = torch.ones(30, 9)
    x[:10] = 0.0
    labels = (torch.arange(30) >= 10).long()
    task = vd.Task(Bright(0.95), x, labels=labels, train=(x, labels), fill="zero")
    tuned = finetune(task, epochs=1, cache=tmp_path)
    found = robustness_table(task, tuned, cache=tmp_path)
    assert found.shares == (0.0, pytest.approx(1 / 9))  # 5% and 10% of 9 are one feature
    assert found.accuracy[ORIGINAL] == (1.0, pytest.approx(1 / 3))
    assert "plain Fid is enough" not in found.advice
    assert "with 1 of 9 features masked" in found.advice
    assert "1 of 9" in repr(found).splitlines()[0]
