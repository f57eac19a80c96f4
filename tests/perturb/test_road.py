"""Noisy linear imputation: the solver against a direct one, for holes of every share and shape."""

import numpy as np
import pytest
import torch

from tests.reference.faithfulness import harmonic_matrix
from veridical.core.key import Key
from veridical.errors import NotApplicableError
from veridical.perturb.fills import NoisyLinear
from veridical.perturb.road import solve_holes

SHAPES = [(8, 8), (7, 11), (15, 6), (3, 5), (1, 9), (28, 28)]
SHARES = [0.1, 0.5, 0.9, 0.97]


def images(shape, share, count=6, seed=0, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(count, 1, *shape, generator=g, dtype=torch.float64).to(dtype)
    hole = torch.rand(count, 1, *shape, generator=g) < share
    hole[:, 0, 0, 0] = False
    return x, hole


def direct(x, hole):
    """The same by SciPy's sparse solver."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.linalg import spsolve

    out = x.copy()
    inner, outer = harmonic_matrix(hole)
    if len(inner):
        out[hole] = spsolve(csr_matrix(inner), (outer * np.where(hole, 0, x)).sum((1, 2)))
    return out


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("share", SHARES)
def test_solution_is_that_of_a_direct_solver(shape, share):
    x, hole = images(shape, share, count=2 if shape == (28, 28) else 6)
    got = solve_holes(x, hole)
    want = [direct(a[0].numpy(), h[0].numpy()) for a, h in zip(x, hole, strict=True)]
    np.testing.assert_allclose(got[:, 0], want, atol=1e-9)


def test_an_image_without_any_pixel_becomes_zero():
    x, hole = images((9, 9), 0.5)
    hole[2] = True
    got = solve_holes(x, hole)
    assert (got[2] == 0).all()
    torch.testing.assert_close(got[:2], solve_holes(x[:2], hole[:2]), atol=1e-9, rtol=0)


def test_kept_pixels_stay_and_nothing_else_is_touched():
    x, hole = images((12, 10), 0.6)
    before = x.clone(), hole.clone()
    got = NoisyLinear().impute(x, hole, torch.arange(6), Key(0))
    assert torch.equal(got[~hole], x[~hole])
    assert torch.equal(x, before[0])
    assert torch.equal(hole, before[1])


@pytest.mark.parametrize("share", SHARES)
def test_a_row_does_not_depend_on_the_rows_beside_it(share):
    x, hole = images((28, 28), share, count=70)
    whole = solve_holes(x, hole)
    for rows in (slice(0, 1), slice(3, 10), slice(40, 70)):
        torch.testing.assert_close(solve_holes(x[rows], hole[rows]), whole[rows], atol=1e-9, rtol=0)


@pytest.mark.parametrize("side", [28, 56])
@pytest.mark.parametrize("blob", [False, True])
def test_single_precision_errs_less_than_the_noise(side, blob):
    x, hole = images((side, side), 0.7, count=8, dtype=torch.float32)
    if blob:  # one hole as wide as most of the image: what plain iterations are slowest at
        hole = torch.zeros_like(hole)
        hole[:, :, 2:-2, 2:-2] = True
    error = (solve_holes(x, hole).double() - solve_holes(x.double(), hole))[hole]
    assert error.square().mean().sqrt() < 0.005
    assert error.abs().max() < 0.05


def test_channels_share_a_hole_or_have_their_own():
    x, hole = images((10, 10), 0.5)
    colour = torch.cat([x, 1 - x, x**2], 1)
    together = solve_holes(colour, hole)
    for channel in range(3):
        apart = solve_holes(colour[:, channel : channel + 1], hole)
        torch.testing.assert_close(together[:, channel : channel + 1], apart, atol=1e-9, rtol=0)
    own = torch.cat([hole, ~hole, hole.flip(-1)], 1)
    apart = solve_holes(colour[:, 1:2], ~hole)
    torch.testing.assert_close(solve_holes(colour, own)[:, 1:2], apart, atol=1e-9, rtol=0)


def test_noise_is_that_of_the_sample_whatever_the_mask():
    x, hole = images((8, 8), 0.5)
    ids, key = torch.tensor([4, 4, 9, 2, 2, 2]), Key(1)
    x[1], x[4], x[5] = x[0], x[3], x[3]
    clean, noisy = NoisyLinear(noise=0).impute(x, hole, ids, key), NoisyLinear().impute(x, hole, ids, key)
    added = noisy - clean
    assert (added[~hole] == 0).all()
    both = hole[0] & hole[1]
    torch.testing.assert_close(added[0][both], added[1][both], atol=1e-12, rtol=0)
    assert 0.005 < added[hole].std() < 0.02
    alone = NoisyLinear().impute(x[3:4], hole[3:4], ids[3:4], key)
    torch.testing.assert_close(alone, noisy[3:4], atol=1e-9, rtol=0)


def test_rows_that_are_no_images_are_refused():
    with pytest.raises(NotApplicableError):
        NoisyLinear().impute(torch.zeros(2, 5), torch.zeros(2, 5, dtype=torch.bool), torch.zeros(2), Key(0))
