from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.functional import cases
from tests.reference import functional_ranking as reference
from veridical.functional import isotonic_fit


def check_fit(function):
    weights = cases.smooth(12, seed=3).abs() + 0.1
    for y in (cases.smooth(12), cases.tied(12), cases.smooth(12).sort().values):
        for increasing in (True, False):
            sign = 1 if increasing else -1
            plain = sign * scipy.optimize.isotonic_regression(sign * y.numpy()).x
            cases.assert_same(function(y, increasing=increasing), plain)
            weighted = sign * scipy.optimize.isotonic_regression(sign * y.numpy(), weights=weights.numpy()).x
            cases.assert_same(function(y, weights, increasing=increasing), weighted)


def test_agrees_with_scipy():
    check_fit(isotonic_fit)


def unweighted(y, weights=None, increasing=False):
    return isotonic_fit(y, None, increasing)


def wrong_way(y, weights=None, increasing=False):
    return isotonic_fit(y, weights, not increasing)


def running_extreme(y, weights=None, increasing=False):
    return y.cummax(-1).values if increasing else y.cummin(-1).values


def pooled_once(y, weights=None, increasing=False):
    y = y.clone()
    bad = (y.diff() < 0) if increasing else (y.diff() > 0)
    for i in bad.nonzero().flatten().tolist():
        y[i : i + 2] = y[i : i + 2].mean()
    return y


@pytest.mark.parametrize("mutant", [unweighted, wrong_way, running_extreme, pooled_once])
def test_wrong_fits_fail_the_check(mutant):
    with pytest.raises(AssertionError):
        check_fit(mutant)


@given(st.lists(st.tuples(st.integers(-4, 4), st.integers(1, 5)), min_size=1, max_size=9), st.booleans())
def test_agrees_with_the_min_max_formula(pairs, increasing):
    y, w = ([float(v) for v in column] for column in zip(*pairs, strict=True))
    got = isotonic_fit(cases.row(y), cases.row(w), increasing)
    cases.assert_same(got, reference.isotonic_fit(y, w, increasing))


@given(cases.numbers(1))
def test_is_monotone_to_the_last_bit_and_a_projection(values):
    y = cases.row(values)
    fit = isotonic_fit(y)
    assert (fit.diff() <= 0).all()
    assert torch.equal(isotonic_fit(fit), fit)
    descending = y.sort(descending=True).values
    assert torch.equal(isotonic_fit(descending), descending)


def test_rows_are_independent_of_their_batch():
    y = torch.stack([cases.smooth(200, seed=i) for i in range(20)])
    together = isotonic_fit(y, increasing=True)
    expected = np.stack([scipy.optimize.isotonic_regression(r).x for r in y.numpy()])
    cases.assert_same(together, expected)
    for i in (0, 7):
        assert torch.equal(together[i], isotonic_fit(y[i], increasing=True))


def test_a_late_fall_pools_everything_before_it():
    y = cases.row([*range(300), -1e6])
    cases.assert_same(isotonic_fit(y, increasing=True), y.mean().expand(301))


def test_masked_and_weightless_entries_do_not_exist():
    where = cases.mask(6, 15)
    y, w = cases.tied(6, 15), cases.smooth(6, 15).abs() + 0.1
    cases.assert_mask_means_absent(isotonic_fit, y, where=where)
    cases.assert_mask_means_absent(
        lambda y, w, where=None: isotonic_fit(y, w, where=where), y, w, where=where
    )
    cases.assert_same(isotonic_fit(y, where.double()), isotonic_fit(y, where=where))


def test_undefined_rows():
    y = torch.tensor([[1.0, torch.nan, 2.0], [1.0, 2.0, 3.0]])
    assert isotonic_fit(y).isnan().all(-1).tolist() == [True, False]
    assert isotonic_fit(torch.ones(3), torch.tensor([1.0, -1.0, 1.0])).isnan().all()
    assert isotonic_fit(torch.ones(2, 0)).shape == (2, 0)
    assert isotonic_fit(torch.ones(2, 1)).tolist() == [[1.0], [1.0]]
