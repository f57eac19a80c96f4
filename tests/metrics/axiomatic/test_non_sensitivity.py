"""Non-sensitivity: models that ignore known features."""

import pytest
import torch
from torch import nn

import veridical as vd
from tests.reference.metric_cases import linear_task, numbers, text_task
from veridical.core.space import Space
from veridical.models.predictor import Plan

IGNORED = [1, 4]


def deaf_task(rows: int = 5, columns: int = 6, **more: object) -> vd.Task:
    """A linear model whose weights are 0 at the ignored columns."""
    task = linear_task(rows, columns, **more)
    with torch.no_grad():
        task.model.weight[:, IGNORED] = 0.0
    return vd.Task(task.model, task.inputs, plan=Plan(rows=8), **more)


def by_hand(maps: torch.Tensor, ignored: list[int]) -> list[float]:
    out = []
    for row in maps.tolist():
        silent = {i for i, v in enumerate(row) if v == 0}
        out.append(float(len(silent ^ set(ignored))))
    return out


def assert_by_hand(ignored: list[int]) -> None:
    maps = numbers("maps", 5, 6)
    maps[0, IGNORED] = 0.0
    maps[1, [0, 1]] = 0.0
    maps[2, :] = 1.0
    assert vd.score("non_sensitivity", deaf_task(), maps).values.tolist() == by_hand(maps, ignored)


def test_agrees_with_the_symmetric_difference_by_hand() -> None:
    assert_by_hand(IGNORED)
    with pytest.raises(AssertionError):
        assert_by_hand([0, 4])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_exact_maps_of_a_linear_model_score_zero(dtype: torch.dtype) -> None:
    task = deaf_task()
    task = vd.Task(task.model.to(dtype), task.inputs, plan=Plan(rows=8))
    assert vd.score("non_sensitivity", task, "gradient").values.tolist() == [0.0] * 5
    everything = vd.score("non_sensitivity", task, torch.ones(5, 6))
    assert everything.values.tolist() == [2.0] * 5
    assert everything.details["share of features"].tolist() == pytest.approx([2 / 6] * 5)


def test_a_black_feature_the_model_reads_is_not_taken_for_ignored() -> None:
    # removing a zero by zero changes nothing; replacing it by noise does
    x = numbers("x", 5, 6)
    x[:, 0] = 0.0
    task = vd.Task(deaf_task().model, x, plan=Plan(rows=8))
    assert vd.score("non_sensitivity", task, "gradient").values.tolist() == [0.0] * 5
    assert vd.score("non_sensitivity", task, "gradient", fill=vd.fills.Zero()).values.tolist() == [1.0] * 5


def test_counts_and_groups() -> None:
    task = deaf_task()
    scores = vd.score("non_sensitivity", task, torch.ones(5, 6), draws=3)
    assert (scores.cost.forward, scores.cost.backward) == (5 * 6 * 3, 0)
    grouped = vd.score("non_sensitivity", task, torch.ones(5, 6), draws=3, group=4)
    assert grouped.cost.forward == 5 * 2 * 3
    assert grouped.values.tolist() == [0.0] * 5  # both groups hold a feature the model reads


def test_features_that_do_not_exist_do_not_count_and_text_uses_the_fill() -> None:
    valid = torch.ones(5, 6, dtype=torch.bool)
    valid[:, 4] = False
    task = deaf_task(space=Space("column", (6,), 6, torch.arange(6), valid=valid))
    assert vd.score("non_sensitivity", task, torch.ones(5, 6)).values.tolist() == [1.0] * 5
    assert vd.score("non_sensitivity", text_task(), "gradient", draws=1).values.isfinite().all()


def test_interactions_with_a_dead_unit_need_several_draws() -> None:
    class Threshold(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.stack([torch.relu(x[:, 0] - 0.7), -x[:, 1]], 1)

    x = torch.tensor([[0.0, 1.0]] * 40, dtype=torch.float64)
    task = vd.Task(Threshold(), x, targets=torch.zeros(40, dtype=torch.long))
    one, many = (vd.score("non_sensitivity", task, torch.tensor([[1.0, 0.0]] * 40), draws=d) for d in (1, 20))
    assert many.mean() < one.mean()
