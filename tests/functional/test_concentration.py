from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.functional import cases
from tests.reference import functional_maps as reference
from veridical.errors import InputError
from veridical.functional import entropy, gini, histogram_entropy

ROWS = [cases.smooth(6, 15), cases.tied(6, 15), cases.smooth(6, 15).relu()]


def check_gini(function):
    for x in ROWS:
        cases.assert_same(function(x), [reference.gini(r) for r in x.tolist()])


def check_entropy(function):
    for x in ROWS:
        cases.assert_same(function(x), scipy.stats.entropy(x.abs().numpy(), axis=-1))


def check_histogram(function):
    for x in ROWS:
        for bins in (1, 3, 10, 100):
            counts = [np.histogram(r, bins)[0] for r in x.numpy()]
            cases.assert_same(function(x, bins), [scipy.stats.entropy(c) for c in counts])


def test_agree_with_the_definition_and_scipy():
    check_gini(gini)
    check_entropy(entropy)
    check_histogram(histogram_entropy)


def common_range(x, bins):
    width = (x.max() - x.min()) / bins
    index = ((x - x.min()) / width).long().clamp(max=bins - 1)
    shares = torch.nn.functional.one_hot(index, bins).double().mean(-2)
    return torch.special.entr(shares).sum(-1)


@pytest.mark.parametrize(
    ("check", "mutant"),
    [
        (check_gini, lambda x: gini(x) * x.shape[-1] / (x.shape[-1] - 1)),
        (check_gini, lambda x: gini(x) / (x.shape[-1] - 1)),
        (check_gini, lambda x: 1 - gini(x)),
        (check_gini, lambda x: gini(x.relu())),
        (check_entropy, lambda x: entropy(x) / math.log(2)),
        (check_entropy, lambda x: -entropy(x)),
        (check_entropy, lambda x: entropy(x.square())),
        (check_entropy, lambda x: entropy(x.relu())),
        (check_histogram, lambda x, bins: histogram_entropy(x, bins + 1)),
        (check_histogram, lambda x, bins: histogram_entropy(x, bins) / math.log(2)),
        (check_histogram, common_range),
    ],
)
def test_wrong_formulas_fail_the_checks(check, mutant):
    with pytest.raises(AssertionError):
        check(mutant)


def test_masked_entries_do_not_exist():
    for x in ROWS:
        where = cases.mask(6, 15)
        cases.assert_mask_means_absent(gini, x, where=where)
        cases.assert_mask_means_absent(entropy, x, where=where)
        cases.assert_mask_means_absent(lambda x, where=None: histogram_entropy(x, 5, where), x, where=where)


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
