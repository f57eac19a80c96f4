"""Measures of a map and of two maps: distances, concentration, similarity of images, areas, rounding."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.spatial.distance
import scipy.stats
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.functional import cases
from tests.reference import functional as reference
from veridical.errors import InputError, ShapeError
from veridical.functional import (
    area_under_curve,
    average_ranks,
    cosine_distance,
    entropy,
    euclidean,
    gini,
    histogram_entropy,
    rms_normalise,
    round_to_grid,
    spearman,
    ssim,
)


def test_rms_agrees_with_its_definition():
    for e in (cases.smooth(5, 12), cases.tied(5, 12), torch.zeros(2, 12)):
        cases.assert_same(rms_normalise(e), [reference.rms_normalise(r) for r in e.tolist()])


def test_euclidean_agrees_with_scipy():
    for a, b in (
        (cases.smooth(5, 12), cases.smooth(5, 12, seed=1)),
        (cases.tied(5, 12), cases.tied(5, 12, seed=1)),
    ):
        rows = zip(a.numpy(), b.numpy(), strict=True)
        cases.assert_same(euclidean(a, b), [scipy.spatial.distance.euclidean(*r) for r in rows])


def test_cosine_distance_agrees_with_scipy():
    for a, b in (
        (cases.smooth(5, 12), cases.smooth(5, 12, seed=1)),
        (cases.tied(5, 12), cases.tied(5, 12, seed=1)),
    ):
        rows = zip(a.numpy(), b.numpy(), strict=True)
        cases.assert_same(cosine_distance(a, b), [scipy.spatial.distance.cosine(*r) for r in rows])
    zero, one = torch.zeros(3), torch.tensor([1.0, 2.0, 0.0])
    assert cosine_distance(zero, one) == 1
    assert cosine_distance(one, zero) == 1
    assert cosine_distance(zero, zero) == 0


@given(cases.numbers(1))
def test_normalised_maps_have_unit_mean_square_at_any_scale(values):
    e = cases.row(values)
    for scale in (1.0, 2.0**450, 2.0**-450):
        got = rms_normalise(e * scale)
        assert torch.equal(got.sign(), e.sign())
        cases.assert_same(got.square().mean(), float((e != 0).any()))


@given(cases.numbers(3), cases.numbers(3))
def test_cosine_distance_is_a_number_between_0_and_2(a, b):
    n = min(len(a), len(b))
    x, y = cases.row(a[:n]), cases.row(b[:n])
    d = cosine_distance(x, y)
    assert 0 <= d <= 2
    # the plain formula overflows unless the vectors are brought to a common size first
    x, y = (v / v.abs().max().clamp(min=1e-300) for v in (x, y))
    cases.assert_same(d, reference.cosine_distance(x.tolist(), y.tolist()))
    assert cosine_distance(x, x) == 0
    assume((x != 0).any())
    cases.assert_same(cosine_distance(x, -x), 2.0)


def test_nearly_parallel_vectors_keep_their_digits():
    angle = 1e-9
    a, b = cases.row([1.0, 0.0]), cases.row([1.0, angle])
    cases.assert_same(cosine_distance(a, b), angle**2 / 2, atol=0.0, rtol=1e-6)


def test_euclidean_at_the_ends_of_the_range():
    assert euclidean(cases.row([3e200, 0.0]), cases.row([0.0, 4e200])) == pytest.approx(5e200)
    assert euclidean(cases.row([3e-200, 0.0]), cases.row([0.0, 4e-200])) == pytest.approx(5e-200)


def test_both_distances_rank_normalised_maps_alike():
    original = rms_normalise(cases.smooth(30))
    perturbed = rms_normalise(
        cases.smooth(30) + torch.linspace(0, 2, 9).unsqueeze(-1) * cases.smooth(9, 30, seed=1)
    )
    assert spearman(euclidean(original, perturbed), cosine_distance(original, perturbed)) == 1.0


ROWS = [cases.smooth(6, 15), cases.tied(6, 15), cases.smooth(6, 15).relu()]


def test_gini_agrees_with_its_definition():
    for x in ROWS:
        cases.assert_same(gini(x), [reference.gini(r) for r in x.tolist()])


def test_entropy_agrees_with_scipy():
    for x in ROWS:
        cases.assert_same(entropy(x), scipy.stats.entropy(x.abs().numpy(), axis=-1))


def test_histogram_entropy_agrees_with_scipy():
    for x in ROWS:
        for bins in (1, 3, 10, 100):
            counts = [np.histogram(r, bins)[0] for r in x.numpy()]
            cases.assert_same(histogram_entropy(x, bins), [scipy.stats.entropy(c) for c in counts])


@given(cases.numbers(1), st.randoms(use_true_random=False))
def test_order_sign_and_scale_do_not_matter(values, random):
    shuffled = [random.choice((-1, 1)) * v for v in random.sample(values, len(values))]
    for function in (gini, entropy):
        cases.assert_same(function(cases.row(shuffled)), function(cases.row(values)))
        cases.assert_same(function(cases.row(values) * 2.0**400), function(cases.row(values)))
    d = len(values)
    if any(values):
        assert 0 <= gini(cases.row(values)) <= (d - 1) / d + 1e-12
        assert 0 <= entropy(cases.row(values)) <= math.log(d) + 1e-12


@pytest.mark.parametrize("d", [1, 2, 7, 100])
def test_closed_forms(d):
    even, one = torch.full((d,), 0.1), torch.eye(d)[0]
    cases.assert_same(gini(torch.stack([even, one])), [0.0, (d - 1) / d])
    cases.assert_same(entropy(torch.stack([even, one])), [math.log(d), 0.0])
    cases.assert_same(histogram_entropy(torch.arange(float(d)), bins=d), math.log(d))
    ramp = torch.arange(1.0, d + 1)
    cases.assert_same(gini(ramp), (d - 1) / (3 * d))


def test_maps_of_zeros_and_empty_rows_are_undefined():
    for x in (torch.zeros(2, 5), torch.zeros(2, 0)):
        assert gini(x).isnan().all()
        assert entropy(x).isnan().all()
    assert histogram_entropy(torch.zeros(2, 0)).isnan().all()
    assert histogram_entropy(torch.ones(5), where=torch.zeros(5, dtype=torch.bool)).isnan()
    assert histogram_entropy(torch.tensor([1.0, torch.nan])).isnan()
    assert histogram_entropy(torch.tensor([1.0, torch.inf])).isnan()
    assert gini(torch.tensor([1.0, torch.nan])).isnan()
    assert entropy(torch.tensor([1.0, torch.nan])).isnan()


def test_a_constant_row_fills_one_bin():
    assert histogram_entropy(torch.full((3, 9), 0.1)).tolist() == [0.0] * 3
    with pytest.raises(InputError, match="bins"):
        histogram_entropy(torch.ones(3), bins=0)


IMAGES = [
    (cases.smooth(13, 12), cases.smooth(13, 12) + 0.5 * cases.smooth(13, 12, seed=1)),
    (cases.tied(12, 14), cases.tied(12, 14, seed=1)),
    (cases.tied(12, 12), -cases.tied(12, 12)),
]


def joint_range(a, b):
    return max(a.max().item(), b.max().item()) - min(a.min().item(), b.min().item())


def test_ssim_agrees_with_its_definition():
    for a, b in IMAGES:
        expected = reference.ssim(a.tolist(), b.tolist(), 7, joint_range(a, b))
        cases.assert_same(ssim(a, b), expected)


@given(st.floats(-100, 100), st.integers(0, 5))
def test_identical_images_score_one_and_swapping_changes_nothing(offset, seed):
    a, b = cases.smooth(9, 9, seed=seed) + offset, cases.tied(9, 9, seed=seed)
    cases.assert_same(ssim(a, a), 1.0)
    cases.assert_same(ssim(a, b), ssim(b, a))
    cases.assert_same(ssim(8 * a, 8 * b), ssim(a, b))
    assert -1 <= ssim(a, b) < 1


def test_constants():
    flat = torch.full((8, 8), 0.1)
    assert ssim(flat, flat) == 1.0
    assert ssim(torch.zeros(8, 8), torch.zeros(8, 8)) == 1.0
    assert ssim(flat, torch.zeros(8, 8)) < 0.1


def test_far_from_zero_variances_do_not_cancel():
    a, b = cases.tied(10, 10) + 2.0**30, cases.tied(10, 10, seed=1) + 2.0**30
    expected = reference.ssim(a.tolist(), b.tolist(), 7, joint_range(a, b))
    cases.assert_same(ssim(a, b), expected, atol=1e-9)


def test_mistakes_are_named():
    with pytest.raises(ShapeError, match="5 x 9"):
        ssim(torch.rand(5, 9), torch.rand(5, 9))
    with pytest.raises(ShapeError, match="images"):
        ssim(torch.rand(9), torch.rand(9))
    with pytest.raises(InputError, match="odd"):
        ssim(torch.rand(9, 9), torch.rand(9, 9), size=4)


@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5)), min_size=2, max_size=9))
def test_area_agrees_with_its_definition(points):
    y, x = (list(column) for column in zip(*points, strict=True))
    cases.assert_same(area_under_curve(cases.row(y)), reference.area_under_curve(y))
    cases.assert_same(area_under_curve(cases.row(y), cases.row(x)), reference.area_under_curve(y, x))


def test_fewer_than_two_points_have_no_area():
    assert area_under_curve(torch.ones(2, 1)).isnan().all()
    assert area_under_curve(torch.ones(2, 0)).isnan().all()
    assert area_under_curve(torch.ones(3), where=torch.tensor([True, False, False])).isnan()
    assert area_under_curve(torch.tensor([1.0, torch.nan, 1.0])).isnan()


STEPS = {torch.float64: 1e-9, torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 1e-2}


def test_grid_agrees_with_its_definition():
    for dtype, step in STEPS.items():
        for x in (cases.smooth(5, 20).to(dtype), (100 * cases.smooth(5, 20)).to(dtype)):
            rows = [reference.round_to_grid(r, step) for r in x.double().tolist()]
            expected = torch.tensor(rows, dtype=torch.float64)
            got = round_to_grid(x)
            assert got.dtype == torch.float64
            scale = x.double().abs().amax(-1, keepdim=True)
            assert ((got - expected).abs() <= 1e-13 * scale).all()


@given(cases.numbers(1))
def test_rounding_twice_is_rounding_once(values):
    once = round_to_grid(cases.row(values))
    assert torch.equal(round_to_grid(once), once)
    assert torch.equal(once.abs().max(), cases.row(values).abs().max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_in_the_last_bits_ties(dtype):
    exact = torch.tensor([0.25, 0.5, 0.5, 1.0, 0.25], dtype=dtype)
    noisy = exact * (1 + 2 * torch.finfo(dtype).eps * torch.tensor([1, -1, 1, 0, -1], dtype=dtype))
    assert not torch.equal(average_ranks(noisy), average_ranks(exact))
    assert torch.equal(average_ranks(round_to_grid(noisy)), average_ranks(exact))


def test_the_precision_of_the_answer_decides():
    x = cases.row([1.0, 0.5, 0.5 + 1e-8])
    assert round_to_grid(x).unique().numel() == 3
    for like in (torch.float32, torch.zeros(1)):
        assert round_to_grid(x, like=like).unique().numel() == 2


def test_rows_without_scale():
    assert torch.equal(round_to_grid(torch.zeros(2, 3)), torch.zeros(2, 3).double())
    assert round_to_grid(torch.zeros(2, 0)).shape == (2, 0)
    assert round_to_grid(torch.tensor([3, 1_000_000_001])).tolist() == [3.0, 1_000_000_001.0]


def test_infinities_do_not_set_the_scale():
    x = torch.tensor([torch.inf, 0.5, torch.nan, -torch.inf])
    cases.assert_same(round_to_grid(x), [torch.inf, 0.5, torch.nan, -torch.inf])


def test_unknown_precision_is_named():
    with pytest.raises(InputError, match="float8"):
        round_to_grid(torch.zeros(3), like=torch.float8_e4m3fn)
