"""IAC, IEC and MC: figures of the published program, slow rewrites, closed forms, mutants."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.reference import meta as reference
from veridical.errors import ShapeError
from veridical.meta.consistency import (
    averaged_over_draws,
    consistencies,
    inter_consistency_ar,
    inter_consistency_nr,
    intra_consistency,
    meta_consistency,
    resampled_vectors,
)
from veridical.values.scores import Direction

FIGURES = {
    name: torch.from_numpy(value)
    for name, value in np.load(Path(__file__).parents[1] / "data" / "metaquantus.npz").items()
}
HIGHER, LOWER = Direction.HIGHER, Direction.LOWER


def close(a, b, tolerance=1e-9):
    assert torch.allclose(torch.as_tensor(a).double(), b.double(), atol=tolerance, rtol=0), (a, b)


def test_intra_consistency_matches_the_published_program():
    f = FIGURES
    close(intra_consistency(f["scores"], f["near"], f["kept_nr"])[0], f["iac_nr"])
    close(1 - intra_consistency(f["scores"], f["far"], f["kept_ar"])[0], f["iac_ar"])


def test_inter_consistency_matches_the_published_program_and_the_paper():
    f = FIGURES
    close(inter_consistency_nr(f["scores"], f["near"], f["kept_nr"]), f["iec_nr_published"])
    close(inter_consistency_nr(f["scores"], f["near"], f["kept_nr"]), f["iec_nr_paper"])
    far = (f["scores"], f["far"], f["kept_ar"])
    close(inter_consistency_ar(*far, HIGHER), f["iec_ar_paper_higher"])
    close(inter_consistency_ar(*far, LOWER), f["iec_ar_paper_lower"])
    for direction in Direction:
        close(inter_consistency_ar(*far, direction, published=True), f["iec_ar_published"])


def random_scores(seed, ties=False, explainers=3, samples=31, draws=4):
    g = np.random.default_rng(seed)
    base = g.normal(size=(explainers, samples))
    near, far = base + g.normal(size=(2, draws, explainers, samples)) * [[[[0.1]]], [[[1.0]]]]
    if ties:
        base, near, far = base.round(), near.round(), far.round()
    return base, near, far, g.random((draws, samples)) < 0.8, g.random((draws, samples)) < 0.5


@settings(max_examples=20)
@given(st.integers(0, 10_000), st.booleans(), st.sampled_from([(3, 31), (2, 7), (5, 64)]))
def test_everything_matches_the_slow_rewrite(seed, ties, shape):
    base, near, far, kept_nr, kept_ar = random_scores(seed, ties, *shape)
    if not (kept_nr.sum(1) >= 6).any() or not (kept_ar.sum(1) >= 6).any():
        return
    given_ = [torch.from_numpy(a) for a in (base, near, far, kept_nr, kept_ar)]
    for direction in Direction:
        found = consistencies(*given_, direction)
        close(found.iac_nr, torch.tensor(reference.iac(base, near, kept_nr, False)))
        close(found.iac_ar, torch.tensor(reference.iac(base, far, kept_ar, True)))
        close(found.iec_nr, torch.tensor(reference.iec_nr(base, near, kept_nr)))
        lower = direction is LOWER
        close(found.iec_ar, torch.tensor(reference.iec_ar(base, far, kept_ar, lower)))
        close(found.mc, found.vector.mean())


def test_a_tie_that_breaks_is_no_change_of_ranks():
    base = torch.full((4, 8), 0.9375, dtype=torch.float64)
    broken = base[None] + torch.tensor([0.0, 3e-5, 0.0, 3e-5])[:, None]
    swapped = torch.arange(4.0, dtype=torch.float64)[:, None].expand(4, 8)
    kept = torch.ones(1, 8, dtype=torch.bool)
    assert inter_consistency_nr(base, broken, kept).tolist() == [1.0]
    assert inter_consistency_nr(broken[0], base[None], kept).tolist() == [1.0]
    # 0 and 2 are below 1 and 3 in one order; of the other only 0 and 3 keep a place
    assert inter_consistency_nr(broken[0], swapped[None], kept).tolist() == [0.5]


def test_scores_that_rounding_alone_tells_apart_are_ties():
    base = torch.tensor([0.5, 0.5, 0.5, 0.7], dtype=torch.float64)[:, None].expand(4, 8)
    rounding = torch.tensor([[0.0, 3e-6, 6e-6, 0.0], [6e-6, 3e-6, 0.0, 0.0]], dtype=torch.float64)
    one, other = (base + each[:, None] for each in rounding)
    kept = torch.ones(1, 8, dtype=torch.bool)
    assert inter_consistency_nr(one, other[None], kept, ties=1e-5).tolist() == [1.0]
    assert inter_consistency_nr(one, other[None], kept).tolist() == [0.5]
    assert inter_consistency_nr(one, other[None], kept, ties=1e-5, published=True).tolist() == [0.5]
    far = torch.tensor([0.1, torch.inf, 0.5, -torch.inf], dtype=torch.float64)[:, None].expand(4, 8)
    assert inter_consistency_nr(far, far.flip(0)[None], kept, ties=1e-5).tolist() == [0.0]
    # a share of the sample's largest score: of scores a thousandth as large they would be no ties
    assert inter_consistency_nr(one[:3], other[None, :3], kept, ties=1e-6).tolist() == [pytest.approx(1 / 3)]


def test_the_published_rule_is_that_of_the_program_also_with_ties():
    """Every sample has ties. Recorded where numpy sorts small rows stably (NPY_DISABLE_CPU_FEATURES)."""
    tied = [FIGURES[f"tied_{name}"] for name in ("scores", "near", "kept")]
    close(inter_consistency_nr(*tied, published=True), FIGURES["iec_nr_tied_published"])
    assert inter_consistency_nr(*tied)[0] == 1.0, "the first draw breaks ties by 3e-5, and nothing else"


def test_average_first_is_equation_6_as_printed():
    base, near, far, kept_nr, kept_ar = random_scores(3)
    given_ = [torch.from_numpy(a) for a in (base, near, far, kept_nr, kept_ar)]
    found = consistencies(*given_, HIGHER, average_first=True)
    close(found.iec_nr, torch.tensor(reference.iec_nr_averaged(base, near, kept_nr)))
    assert found.iec_nr != consistencies(*given_, HIGHER).iec_nr
    mean, any_kept = averaged_over_draws(given_[1], given_[3])
    assert mean.shape == (1, 3, 31)
    assert torch.equal(any_kept[0], given_[3].any(0))


def test_identical_scores_are_perfectly_resilient_and_wholly_unreactive():
    base = torch.rand(4, 40, dtype=torch.float64)
    same = base.expand(5, 4, 40)
    kept = torch.ones(5, 40, dtype=torch.bool)
    found = consistencies(base, same, same, kept, kept, HIGHER)
    close(found.vector, torch.tensor([1.0, 0.0, 1.0, 0.0]))
    close(torch.stack([found.effect_nr, found.effect_ar]), torch.tensor([1.0, 0.0]))


def test_fewer_than_six_kept_is_nan_and_never_perfect():
    base = torch.rand(3, 20, dtype=torch.float64)
    same = base.expand(2, 3, 20)
    for count, known in ((5, False), (6, True), (0, False)):
        kept = (torch.arange(20) < count).expand(2, 20)
        found = consistencies(base, same, same, kept, kept, HIGHER)
        assert bool(found.mc.isnan()) is not known
        assert bool(found.vector.isnan().all()) is not known


def test_one_explainer_has_no_ranking():
    base = torch.rand(1, 20, dtype=torch.float64)
    kept = torch.ones(2, 20, dtype=torch.bool)
    found = consistencies(base, base.expand(2, 1, 20), base.expand(2, 1, 20), kept, kept, HIGHER)
    assert found.iec_nr.isnan()
    assert found.iac_nr == 1
    assert found.mc.isnan()


def test_missing_scores_are_left_out_unless_published():
    base, _, far, _, kept_ar = (torch.from_numpy(a) for a in random_scores(6))
    kept_ar[:] = True
    far = far.clone()
    far[:, :, :4] = torch.nan
    rest = inter_consistency_ar(base[:, 4:], far[..., 4:], kept_ar[:, 4:], LOWER)
    close(inter_consistency_ar(base, far, kept_ar, LOWER), rest)
    close(inter_consistency_ar(base, far, kept_ar, LOWER, published=True), rest * 27 / 31)
    p = intra_consistency(base[:, 4:], far[..., 4:], kept_ar[:, 4:])[0]
    close(intra_consistency(base, far, kept_ar)[0], p)


@settings(max_examples=20)
@given(st.integers(0, 1000))
def test_monotone_rescaling_and_order_change_no_rank_based_value(seed):
    base, near, far, kept_nr, kept_ar = (torch.from_numpy(a) for a in random_scores(seed))
    found = consistencies(base, near, far, kept_nr, kept_ar, HIGHER)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(31))
    moved = consistencies(
        base[:, order], near[..., order], far[..., order], kept_nr[:, order], kept_ar[:, order], HIGHER
    )
    close(found.vector, moved.vector, 1e-12)
    flipped = consistencies(-base, -near, -far, kept_nr, kept_ar, LOWER)
    close(found.vector, flipped.vector, 1e-12)


@pytest.mark.parametrize("average_first", [False, True])
def test_resamples_are_consistencies_of_the_chosen_samples(average_first):
    base, near, far, kept_nr, kept_ar = (torch.from_numpy(a) for a in random_scores(8, True, samples=60))
    kept_ar[0, 5:] = False  # of a draw that kept five, no choice makes one that counts
    picks = torch.randint(60, (5, 60), generator=torch.Generator().manual_seed(1))
    each = (near[None], far[None], kept_nr[None], kept_ar[None])
    fast = resampled_vectors(base, *each, HIGHER, picks, average_first=average_first)
    for row, some in zip(fast, picks, strict=True):
        chosen = (near[..., some], far[1:, :, some], kept_nr[:, some], kept_ar[1:, some])
        close(row, consistencies(base[:, some], *chosen, HIGHER, average_first=average_first).vector)


def test_shapes_are_checked():
    base = torch.rand(3, 20)
    with pytest.raises(ShapeError, match=r"\(2, 3, 19\)"):
        consistencies(base, torch.rand(2, 3, 19), base[None], torch.ones(2, 19) > 0, base[:2] > 0, HIGHER)
    with pytest.raises(ShapeError, match="4 entries"):
        meta_consistency(torch.rand(3))
