"""What explainers by masks share: pieces that fit, counts and systems that are exact, NaN refused."""

from __future__ import annotations

import pytest
import torch

import veridical as vd
from veridical.errors import ModelError
from veridical.explainers import KernelShap, Lime, occlusion
from veridical.explainers.occlusion import mask_pieces
from veridical.explainers.surrogates import shared_counts, solved
from veridical.testing import tiny_task


@pytest.mark.parametrize("name", ["lime", "kernel_shap", "rise", "feature_ablation"])
def test_an_answer_that_is_not_finite_is_refused(name: str) -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        return torch.where(x.flatten(1).sum(-1, keepdim=True) > 8.5, x.flatten(1)[:, :3], torch.nan)

    task = vd.Task(broken, torch.ones(2, 1, 3, 3), fill=0.0)
    with pytest.raises(ModelError, match="NaN or infinity"):
        vd.explain(name, task)


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
        monkeypatch.setattr(occlusion, "_MASKED_FEATURES", (most, 2**28))
        assert [len(piece) for piece in mask_pieces(many, 10)] == expected
    assert [len(piece) for piece in mask_pieces(many[:3], 1000)] == [3]
    monkeypatch.setattr(occlusion, "_MASKED_FEATURES", (1, 2**28))
    assert [len(piece) for piece in mask_pieces(many[:3], 1000)] == [1, 1, 1]


@pytest.mark.parametrize(("rows", "features"), [(8, 16), (7, 13), (3, 2049), (13, 5000)])
def test_common_features_are_counted_exactly(rows: int, features: int) -> None:
    removed = torch.rand(2, rows, features, generator=torch.Generator().manual_seed(1)) < 0.9
    with torch.autocast("cpu", dtype=torch.bfloat16):
        counts = shared_counts(removed)
    assert torch.equal(counts, removed.double() @ removed.double().mT)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("explainer", [Lime(draws=90), KernelShap(budget=181)])
def test_a_gpu_gives_the_maps_of_a_cpu(explainer) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(100, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).double()
    task = vd.Task(model, torch.randn(3, 100).double(), fill=0.0)
    expected, found = (vd.explain(explainer, each).values.cpu() for each in (task, task.to("cuda")))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6 * float(expected.abs().max()))
