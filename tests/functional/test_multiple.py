from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.functional import cases
from tests.reference import functional_ranking as reference
from veridical.functional import holm

PROBABILITIES = st.one_of(st.floats(0, 1), st.sampled_from([0.01, 0.05, 1.0, math.nan]))


def check_holm(function):
    for p in (cases.smooth(6, 9).abs() / 50, cases.tied(6, 9).abs() / 40):
        cases.assert_same(function(p), [reference.holm(r) for r in p.tolist()])
    # Holm (1979): by hand
    cases.assert_same(function(cases.row([0.01, 0.04, 0.03, 0.005])), [0.03, 0.06, 0.06, 0.02])


def test_agrees_with_the_definition():
    check_holm(holm)


@pytest.mark.parametrize(
    "mutant",
    [
        lambda p: (p * p.shape[-1]).clamp(max=1),  # Bonferroni
        lambda p: p,
        lambda p: holm(p) * 1.01,
        lambda p: (p * (p.shape[-1] - p.argsort(-1).argsort(-1))).clamp(max=1),  # not made monotone
    ],
)
def test_wrong_formulas_fail_the_check(mutant):
    with pytest.raises(AssertionError):
        check_holm(mutant)


@given(st.lists(PROBABILITIES, max_size=8))
def test_nan_stays_and_does_not_count(p):
    cases.assert_same(holm(cases.row(p)), reference.holm(p))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_adjusting_keeps_the_order_and_never_helps(p):
    before, after = cases.row(p), holm(cases.row(p))
    assert (after >= before).all()
    assert (after <= 1).all()
    order = before.argsort()
    assert (after[order].diff() >= 0).all()


def test_masked_entries_do_not_exist():
    where = cases.mask(6, 9)
    cases.assert_mask_means_absent(holm, cases.smooth(6, 9).abs() / 20, where=where)
    assert torch.equal(holm(torch.rand(6, 9), where).isnan(), ~where)
