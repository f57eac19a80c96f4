"""Answers that are not finite are refused, and the systems of equations behind masks are exact."""

from __future__ import annotations

import pytest
import torch

import veridical as vd
from veridical.errors import ModelError
from veridical.explainers import mask_rules
from veridical.explainers.least_squares import _in_stretches, shared_counts, solved
from veridical.testing import tiny_task


@pytest.mark.parametrize("name", ["lime", "kernel_shap", "rise", "feature_ablation"])
def test_an_answer_that_is_not_finite_is_refused(name: str) -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        return torch.where(x.flatten(1).sum(-1, keepdim=True) > 8.5, x.flatten(1)[:, :3], torch.nan)

    task = vd.Task(broken, torch.ones(2, 1, 3, 3), fill=0.0)
    with pytest.raises(ModelError, match="NaN or infinity"):
        vd.explain(name, task)


def test_common_features_are_counted_exactly_in_stretches() -> None:
    truths = torch.rand(3, 7, 5000, generator=torch.Generator().manual_seed(0)) < 0.9
    counts = truths.double() @ truths.double().mT
    assert torch.equal(_in_stretches(truths.view(torch.uint8)), counts)
    assert torch.equal(shared_counts(truths), counts)
    # in one stretch half floats would round
    assert not torch.equal((truths.half() @ truths.half().mT).double(), counts)


def test_a_system_that_has_no_answer_is_told_by_nan() -> None:
    gram = torch.stack([torch.eye(3), torch.ones(3, 3) - torch.eye(3)]).double()
    found = solved(gram, torch.ones(2, 3, 1, dtype=torch.float64))
    assert torch.equal(found[0], torch.ones(3, 1, dtype=torch.float64))
    assert bool(found[1].isnan().all())


def test_pieces_of_masks_fill_whole_chunks_and_a_fixed_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    task = tiny_task("table")
    features = task.space.n_features
    many = task[torch.arange(50) % len(task)].with_plan(vd.Plan(rows=64))
    for most, expected in ((1, [6] * 8 + [2]), (20 * 10 * features, [18, 18, 14]), (2**30, [50])):
        monkeypatch.setattr(mask_rules, "_MASKED_FEATURES", (most, 2**28))
        assert [len(piece) for piece in mask_rules.mask_pieces(many, 10)] == expected
    assert [len(piece) for piece in mask_rules.mask_pieces(many[:3], 1000)] == [3]
    monkeypatch.setattr(mask_rules, "_MASKED_FEATURES", (1, 2**28))
    assert [len(piece) for piece in mask_rules.mask_pieces(many[:3], 1000)] == [1, 1, 1]
