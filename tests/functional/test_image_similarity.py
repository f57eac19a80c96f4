from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.functional import cases
from tests.reference import functional_maps as reference
from veridical.errors import InputError, ShapeError
from veridical.functional import ssim

UNIFORM = torch.full((7, 7), 1 / 49, dtype=torch.float64)
OFFSET = torch.arange(11, dtype=torch.float64) - 5
GAUSSIAN = torch.exp(-(OFFSET.square().unsqueeze(-1) + OFFSET.square()) / (2 * 1.5**2))
GAUSSIAN /= GAUSSIAN.sum()
IMAGES = [
    (cases.smooth(13, 12), cases.smooth(13, 12) + 0.5 * cases.smooth(13, 12, seed=1)),
    (cases.tied(12, 14), cases.tied(12, 14, seed=1)),
    (cases.tied(12, 12), -cases.tied(12, 12)),
]


def joint_range(a, b):
    return max(a.max().item(), b.max().item()) - min(a.min().item(), b.min().item())


def check_ssim(function):
    for a, b in IMAGES:
        for window, weights in (("uniform", UNIFORM), ("gaussian", GAUSSIAN)):
            for sample in (True, False):
                expected = reference.ssim(a.tolist(), b.tolist(), weights.tolist(), joint_range(a, b), sample)
                cases.assert_same(function(a, b, window=window, sample_covariance=sample), expected)
        given_range = reference.ssim(a.tolist(), b.tolist(), UNIFORM.tolist(), 2.5, True)
        cases.assert_same(function(a, b, data_range=2.5), given_range)


def test_agrees_with_the_definition():
    check_ssim(ssim)


def test_agrees_with_scikit_image_where_installed():
    skimage = pytest.importorskip("skimage.metrics")
    for a, b in IMAGES:
        span = joint_range(a, b)
        expected = skimage.structural_similarity(a.numpy(), b.numpy(), data_range=span)
        cases.assert_same(ssim(a, b), expected)
        wang = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False}
        expected = skimage.structural_similarity(a.numpy(), b.numpy(), data_range=span, **wang)
        cases.assert_same(ssim(a, b, window="gaussian", sample_covariance=False), expected)


def wrong_window(a, b, window="uniform", **options):
    return ssim(a, b, window="uniform", **options)


def wrong_ddof(a, b, sample_covariance=True, **options):
    return ssim(a, b, sample_covariance=False, **options)


def wrong_range(a, b, data_range=1.0, **options):
    return ssim(a, b, data_range=data_range, **options)


@pytest.mark.parametrize(
    "mutant",
    [
        wrong_window,
        wrong_ddof,
        wrong_range,
        lambda a, b, **o: -ssim(a, b, **o),
        lambda a, b, **o: ssim(a, -b, **o),
    ],
)
def test_wrong_variants_fail_the_check(mutant):
    with pytest.raises(AssertionError):
        check_ssim(mutant)


def test_batches_are_images_side_by_side():
    a, b = cases.smooth(2, 3, 9, 10), cases.smooth(2, 3, 9, 10, seed=1)
    got = ssim(a, b)
    assert got.shape == (2, 3)
    for i in range(2):
        for j in range(3):
            cases.assert_same(got[i, j], ssim(a[i, j], b[i, j]))


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


def test_windows_that_touch_a_masked_pixel_are_left_out():
    a, b = cases.smooth(16, 9), cases.smooth(16, 9, seed=1)
    where = (torch.arange(16) < 8).unsqueeze(-1).expand(16, 9)
    cases.assert_same(ssim(cases.poisoned(a, where), cases.poisoned(b, where), where), ssim(a[:8], b[:8]))
    where = (torch.arange(16) % 4 > 0).unsqueeze(-1)
    assert ssim(a, b, where.expand(16, 9)).isnan()


def test_far_from_zero_variances_do_not_cancel():
    a, b = cases.tied(10, 10) + 2.0**30, cases.tied(10, 10, seed=1) + 2.0**30
    expected = reference.ssim(a.tolist(), b.tolist(), UNIFORM.tolist(), joint_range(a, b), True)
    cases.assert_same(ssim(a, b), expected, atol=1e-9)


def test_mistakes_are_named():
    with pytest.raises(ShapeError, match="5 x 9"):
        ssim(torch.rand(5, 9), torch.rand(5, 9))
    with pytest.raises(ShapeError, match="images"):
        ssim(torch.rand(9), torch.rand(9))
    with pytest.raises(InputError, match="odd"):
        ssim(torch.rand(9, 9), torch.rand(9, 9), size=4)
    with pytest.raises(InputError, match="box"):
        ssim(torch.rand(9, 9), torch.rand(9, 9), window="box")
