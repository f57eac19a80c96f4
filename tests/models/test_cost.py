"""Cost is a count: `rows` is what entered `forward`, `rows_alone` is the same whoever asked before."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import veridical as vd

X = torch.rand(8, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Counting(nn.Module):
    """Counts the rows that enter, over all of its copies."""

    def __init__(self, seen: list[int]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))
        self.seen = seen

    def __deepcopy__(self, memo: Any) -> Counting:
        made = Counting(self.seen)
        made.load_state_dict(self.state_dict())
        return made.train(self.training)

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(len(x))
        out: Tensor = self.body(x)
        return out


def task_of(seen: list[int]) -> vd.Task:
    return vd.Task(Counting(seen), X, fill=0.0)


CALLS = {
    "gradient": lambda task: vd.explain("gradient", task),
    "lrp": lambda task: vd.explain("lrp", task),
    "pixel_flipping": lambda task: vd.score("pixel_flipping", task, MAPS),
    "fast_gef": lambda task: vd.score("fast_gef", task, "gradient", path=(0.1, 0.4, 0.8), draws=2),
}
MAPS = torch.rand(8, 64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", CALLS)
def test_rows_are_those_that_entered_and_rows_alone_never_change(name: str) -> None:
    seen: list[int] = []
    task = task_of(seen)
    alone = CALLS[name](task_of([])).cost
    for _ in range(3):
        seen.clear()
        cost = CALLS[name](task).cost
        assert cost.rows == sum(seen)
        assert cost == alone
        assert cost.rows_alone == alone.rows_alone == cost.forward > 0


def test_what_others_asked_before_changes_no_rows_alone() -> None:
    seen: list[int] = []
    task = task_of(seen)
    alone = {name: call(task_of([])).cost.rows_alone for name, call in CALLS.items()}
    assert {name: call(task).cost.rows_alone for name, call in CALLS.items()} == alone
    assert {name: CALLS[name](task).cost.rows_alone for name in reversed(CALLS)} == {**alone}


def test_code_of_others_is_counted_too() -> None:
    seen: list[int] = []
    task = task_of(seen)

    def own(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        return model(inputs)[:, :1, None, None] * inputs

    _ = task.targets
    seen.clear()
    assert vd.explain(own, task).cost.rows == sum(seen) == 8


def test_a_cost_is_kept_with_its_result(tmp_path: Any) -> None:
    found = CALLS["pixel_flipping"](task_of([]))
    again = vd.Scores.load(found.save(tmp_path / "scores.safetensors"))
    assert (again.cost, again.cost.rows) == (found.cost, found.cost.rows)
