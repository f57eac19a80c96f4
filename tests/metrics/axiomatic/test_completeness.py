"""Completeness: exact on linear models and for integrated gradients, a gap and not a test."""

import pytest
import torch

import veridical as vd
from tests.reference.metric_cases import image_task, linear_task, mlp_task, numbers
from veridical.perturb.fills import Constant, Zero


def gap_by_hand(task: vd.Task, maps: torch.Tensor, baseline: float) -> list[float]:
    out = []
    for i, target in enumerate(task.targets.tolist()):
        x = task.inputs[i : i + 1]
        full = task.model(x)[0, target].item()
        empty = task.model(torch.full_like(x, baseline))[0, target].item()
        out.append(abs(sum(maps[i].tolist()) - (full - empty)))
    return out


def assert_by_hand(baseline: float) -> None:
    task, maps = mlp_task(), numbers("maps", 6, 5)
    got = vd.score("completeness", task, maps, fill=Constant(0.5)).values.tolist()
    assert got == pytest.approx(gap_by_hand(task, maps, baseline), abs=1e-8)


def test_agrees_with_the_definition_by_hand() -> None:
    assert_by_hand(0.5)
    with pytest.raises(AssertionError):
        assert_by_hand(0.0)


def test_input_x_gradient_of_a_linear_model_is_complete_and_the_gradient_is_not() -> None:
    task = linear_task(fill=Zero())
    assert vd.score("completeness", task, "input_x_gradient").values.max() < 1e-8
    assert vd.score("completeness", task, "gradient").values.min() > 1e-3


def test_integrated_gradients_are_complete() -> None:
    for task in (mlp_task(fill=Zero()), image_task()):
        values = vd.score("completeness", task, "integrated_gradients").values
        assert values.max() < 1e-8
    assert vd.score("completeness", mlp_task(fill=Zero()), "integrated_gradients").direction == "lower"


def test_the_gap_grows_with_the_error_and_never_reads_places() -> None:
    task = linear_task(fill=Zero())
    exact = vd.explain("input_x_gradient", task)
    for error in (0.25, -3.0):
        off = exact.values.clone()
        off[:, 2] += error
        gap = vd.score("completeness", task, off).values
        torch.testing.assert_close(gap, torch.full((6,), abs(error), dtype=torch.float64), atol=1e-8, rtol=0)
    flipped = vd.score("completeness", task, exact.values.flip(-1)).values
    assert flipped.max() < 1e-8


def test_probabilities_on_request_and_counts() -> None:
    task = mlp_task(rows=11, fill=Zero())
    maps = numbers("maps", 11, 5)
    scores = vd.score("completeness", task, maps)
    assert (scores.cost.forward, scores.cost.backward) == (11, 0)
    fall = vd.score("completeness", task, maps, response="probability").details["change of answer"]
    assert (fall.abs() <= 1).all()
