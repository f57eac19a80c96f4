"""What the methods that ask about coalitions of features have in common."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import veridical as vd
from veridical.core.key import Key
from veridical.explainers import KernelShap, Lime, kernel_shap, least_squares, lime, mask_rules
from veridical.explainers.least_squares import (
    _in_stretches,
    _solved_by_factor,
    _solved_in_blocks,
    sample_blocks,
    shared_counts,
    solved,
)
from veridical.explainers.mask_rules import SizedSubsets


def test_a_system_without_an_answer_is_nan_and_its_neighbours_are_solved() -> None:
    fine = torch.tensor([[2.0, 1.0], [1.0, 3.0]], dtype=torch.float64)
    indefinite = torch.tensor([[1.0, 2.0], [2.0, 1.0]], dtype=torch.float64)
    right = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    found = solved(torch.stack([fine, indefinite, fine]), right.expand(3, 2, 1))
    assert bool(found[1].isnan().all())
    for each in (found[0], found[2]):
        torch.testing.assert_close(fine @ each, right)


# --- systems in blocks: what a GPU does, done on a CPU ----------------------------------------------------


def limes_system(masks: int, features: int, samples: int = 2, ridge: float = 1.0) -> tuple[Tensor, Tensor]:
    """The system that LIME solves, with two right-hand sides as there."""
    draw = torch.Generator().manual_seed(masks)
    keep = torch.rand(samples, masks, 1, generator=draw)
    kept = torch.rand(samples, masks, features, generator=draw) < keep
    gone = 1 - kept.double().mean(-1)
    gram = shared_counts(kept)
    gram.diagonal(dim1=-2, dim2=-1).add_(ridge * torch.exp((gone / 0.5) ** 2))
    return gram, torch.randn(samples, masks, 2, generator=draw, dtype=torch.float64)


def off(found: Tensor, expected: Tensor) -> float:
    """The largest difference in the measure of each sample's largest number."""
    return float(((found - expected).abs().amax((1, 2)) / expected.abs().amax((1, 2))).max())


@pytest.mark.parametrize("masks", [5, 64, 65, 127, 128, 129, 200, 513])
def test_blocks_solve_as_one_factor_does(masks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    gram, right = limes_system(masks, max(masks + 10, 784 if masks == 513 else 0))
    expected = _solved_by_factor(gram, right)
    assert off(_solved_in_blocks(gram.clone(), right), expected) < 1e-10
    if masks > 64:
        # without what the first half says about the second it is another system
        monkeypatch.setattr(
            least_squares, "_eliminated", lambda g, cut, inverse: g[:, cut:, :cut] @ inverse.mT
        )
        assert off(_solved_in_blocks(gram.clone(), right), expected) > 1e-3


@pytest.mark.parametrize("leaf", [1, 3, 16])
def test_any_leaf_gives_the_same(leaf: int, monkeypatch: pytest.MonkeyPatch) -> None:
    gram, right = limes_system(41, 60)
    expected = _solved_by_factor(gram, right)
    monkeypatch.setattr(least_squares, "_LEAF", leaf)
    assert off(_solved_in_blocks(gram.clone(), right), expected) < 1e-10


def test_a_gram_within_a_larger_array_is_solved() -> None:
    gram, right = limes_system(129, 140)
    room = torch.full((2, 136, 136), torch.nan, dtype=torch.float64)
    room[:, :129, :129] = gram
    assert off(_solved_in_blocks(room[:, :129, :129], right), _solved_by_factor(gram, right)) < 1e-10
    assert bool(room[:, 129:].isnan().all())


def test_weights_of_nothing_do_no_harm_in_blocks() -> None:
    gram, right = limes_system(200, 300)
    gram.diagonal(dim1=-2, dim2=-1)[:, 3::7] = 1e200
    expected = _solved_by_factor(gram, right)
    assert off(_solved_in_blocks(gram.clone(), right), expected) < 1e-10
    assert float(expected[:, 3::7].abs().max()) < 1e-190


@pytest.mark.parametrize("place", [0, 63, 64, 130, 199])
def test_a_failure_in_any_block_is_nan_throughout_and_for_nobody_else(place: int) -> None:
    gram, right = limes_system(200, 300, samples=3)
    expected = _solved_by_factor(gram, right)
    gram[1, place, place] = -1.0
    found = _solved_in_blocks(gram, right)
    assert bool(found[1].isnan().all())
    assert off(found[::2], expected[::2]) < 1e-10


def test_sets_drawn_twice_are_solved_in_blocks_as_by_one_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    # KernelSHAP draws small sets often, equal ones among them: their system has a vanishing ridge alone
    samples, features, pairs = 3, 160, 150
    ids, valid = torch.arange(samples), torch.ones(samples, features, dtype=torch.bool)
    sizes = kernel_shap._spread_sizes(Key(0), ids, pairs, valid.sum(-1, keepdim=True), features)
    sets = SizedSubsets(Key(1), ids, features, sizes)
    kept = ~sets.removed(slice(0, samples), slice(0, pairs))
    assert len(kept[0].unique(dim=0)) < pairs
    draw = torch.Generator().manual_seed(0)
    slopes = torch.randn(samples, features, generator=draw, dtype=torch.float64)

    def game(shown: Tensor) -> Tensor:
        return torch.tanh((shown.double() @ slopes[..., None])[..., 0] / 5)

    answers = torch.stack([game(kept), game(~kept)], -1)
    total = game(valid[:, None]) - game(~valid[:, None])

    def deviations() -> Tensor:
        return kernel_shap._deviations(kept, answers, total, valid, None)

    monkeypatch.setattr(kernel_shap, "solved", _solved_by_factor)
    expected = deviations()
    monkeypatch.setattr(kernel_shap, "solved", _solved_in_blocks)
    assert off(deviations()[..., None], expected[..., None]) < 1e-9
    monkeypatch.setattr(kernel_shap, "solved", lambda g, r: _solved_in_blocks(g + torch.eye(pairs), r))
    assert off(deviations()[..., None], expected[..., None]) > 1e-3


@pytest.mark.parametrize("explainer", [Lime(draws=90), KernelShap(budget=181)])
def test_maps_in_blocks_are_the_maps(explainer, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(100, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).double()
    task = vd.Task(model, torch.randn(3, 100).double(), fill=0.0)
    expected = vd.explain(explainer, task).values
    for module in (lime, kernel_shap):
        monkeypatch.setattr(module, "solved", _solved_in_blocks)
        monkeypatch.setattr(module, "shared_counts", lambda kept: _in_stretches(kept.view(torch.uint8)))
    # where sets were drawn twice, a vanishing ridge leaves either way 8 of 16 digits: both are 1e-8 from what
    # a factor in extended precision gives
    assert off(vd.explain(explainer, task).values[..., None], expected[..., None]) < 5e-8


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("explainer", [Lime(draws=90), KernelShap(budget=181)])
def test_a_gpu_gives_the_maps_of_a_cpu(explainer) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(100, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).double()
    task = vd.Task(model, torch.randn(3, 100).double(), fill=0.0)
    expected, found = (vd.explain(explainer, each).values.cpu() for each in (task, task.to("cuda")))
    assert off(found[..., None], expected[..., None]) < 1e-6


# --- counts and cuts --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "features"), [(8, 16), (7, 16), (8, 13), (3, 2049), (13, 4100)])
def test_counts_do_not_look_at_what_fills_up_rows(rows: int, features: int) -> None:
    truths = torch.rand(2, rows, features, generator=torch.Generator().manual_seed(1)) < 0.7
    torch.use_deterministic_algorithms(True)  # what is not written to holds NaN
    try:
        counts = _in_stretches(truths.view(torch.uint8))
    finally:
        torch.use_deterministic_algorithms(False)
    assert counts.shape == (2, rows, rows)
    assert torch.equal(counts, truths.double() @ truths.double().mT)


def test_blocks_of_samples_fit_the_memory_of_their_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(least_squares, "_SOLVER_ELEMENTS", (100, 2**28))
    cpu, other = torch.device("cpu"), torch.device("meta")
    assert list(sample_blocks(7, 30, cpu)) == [slice(0, 3), slice(3, 6), slice(6, 7)]
    assert list(sample_blocks(2, 1000, cpu)) == [slice(0, 1), slice(1, 2)]
    assert list(sample_blocks(7, 30, other)) == [slice(0, 7)]


def test_pieces_are_alike_and_share_the_outputs_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    class Counted(torch.nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            asked.append(len(x))
            return super().forward(x)

    task = vd.Task(Counted(6, 2), torch.randn(50, 6), targets=torch.zeros(50, dtype=torch.int64), fill=0.0)
    task = task.with_plan(vd.Plan(rows=64))
    # 8 samples fill a chunk, and the masks of 24 fit
    monkeypatch.setattr(mask_rules, "_MASKED_FEATURES", (24 * 8 * 6, 2**28))
    asked.clear()
    pieces = list(mask_rules.mask_pieces(task, 8))
    assert [len(piece) for piece in pieces] == [24, 24, 2]
    for piece, start in zip(pieces, (0, 24, 48), strict=True):
        assert torch.equal(piece.outputs, task.outputs[start : start + 24])
    assert asked == [56]
    monkeypatch.setattr(mask_rules, "_MASKED_FEATURES", (40 * 8 * 6, 2**28))
    assert [len(piece) for piece in mask_rules.mask_pieces(task, 8)] == [32, 18]  # where 40 would fit
