"""Consistency: matching explanations, by hand, on reference rows."""

import pytest
import torch

import veridical as vd
from tests.reference import metrics as robustness
from tests.reference.metric_cases import mlp_task, numbers, one_gradient
from veridical.metrics.robustness.consistency import agreement_among_matches, explanation_codes

TRAIN = numbers("train", 40, 5)


def by_hand(task: vd.Task, top: int) -> torch.Tensor:
    classes = task.model(TRAIN).argmax(-1).tolist()
    others = [one_gradient(task, x, c).abs().tolist() for x, c in zip(TRAIN, classes, strict=True)]
    out = []
    for x, own in zip(task.inputs, task.predictions.tolist(), strict=True):
        out.append(
            robustness.consistency(one_gradient(task, x, own).abs().tolist(), own, others, classes, top)
        )
    return torch.tensor(out, dtype=torch.float64)


def assert_by_hand(top: int, other_top: int) -> vd.Scores:
    task = mlp_task(rows=12, train=TRAIN)
    scores = vd.score("consistency", task, "saliency", top=top)
    torch.testing.assert_close(scores.values, by_hand(task, other_top), equal_nan=True)
    return scores


@pytest.mark.parametrize("top", [1, 2, 3])
def test_agrees_with_the_definition_by_hand(top: int) -> None:
    scores = assert_by_hand(top, top)
    lonely = scores.details["matching rows"] == 0
    assert torch.equal(lonely, scores.values.isnan())
    assert scores.cost.forward == 12 + 2 * 40
    assert scores.cost.backward == 12 + 40
    with pytest.raises(AssertionError):
        assert_by_hand(top, top % 3 + 1)


def test_signs_and_sets_make_the_code_not_the_order() -> None:
    maps = torch.tensor([[3.0, -2.0, 0.1], [2.0, -3.0, 0.2], [3.0, 2.0, 0.1], [0.0, -2.0, 3.0]])
    codes = explanation_codes(maps, 2)
    assert torch.equal(codes[0], codes[1])
    assert not torch.equal(codes[0], codes[2])
    assert not torch.equal(codes[0], codes[3])


def test_share_of_matches_with_the_same_class() -> None:
    code = torch.tensor([[1, 2]])
    others = torch.tensor([[1, 2], [1, 2], [1, 2], [1, 3]])
    found = agreement_among_matches(code, torch.tensor([7]), others, torch.tensor([7, 7, 5, 7]))
    assert found.tolist() == [[pytest.approx(2 / 3), 3.0]]


def test_it_needs_classes_and_reference_rows() -> None:
    with pytest.raises(vd.errors.NotApplicableError, match="train="):
        vd.score("consistency", mlp_task(), "gradient")
    with pytest.raises(vd.errors.NotApplicableError, match="regression"):
        vd.score("consistency", mlp_task(head="regression", train=TRAIN), "gradient")
