from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.functional import cases
from tests.reference import functional_maps as reference
from veridical.functional import area_under_curve


def check_area(function):
    y, x = cases.smooth(5, 17), cases.smooth(5, 17, seed=1).sort(-1).values
    cases.assert_same(function(y), np.trapezoid(y.numpy()))
    cases.assert_same(function(y, x), np.trapezoid(y.numpy(), x.numpy()))
    cases.assert_same(function(y, x[0]), np.trapezoid(y.numpy(), x[0].numpy()))


def test_agrees_with_numpy():
    check_area(area_under_curve)


@pytest.mark.parametrize(
    "mutant",
    [
        lambda y, x=None: -area_under_curve(y, x),
        lambda y, x=None: y[..., :-1].sum(-1),
        lambda y, x=None: area_under_curve(y, x) / (y.shape[-1] - 1),
        lambda y, x=None: area_under_curve(y),
    ],
)
def test_wrong_formulas_fail_the_check(mutant):
    with pytest.raises(AssertionError):
        check_area(mutant)


@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5)), min_size=2, max_size=9))
def test_agrees_with_the_definition(points):
    y, x = (list(column) for column in zip(*points, strict=True))
    cases.assert_same(area_under_curve(cases.row(y)), reference.area_under_curve(y))
    cases.assert_same(area_under_curve(cases.row(y), cases.row(x)), reference.area_under_curve(y, x))


def test_masked_points_are_dropped_and_neighbours_joined():
    y, x = cases.smooth(6, 14), cases.smooth(6, 14, seed=1)
    where = cases.mask(6, 14)
    cases.assert_mask_means_absent(area_under_curve, y, where=where)
    cases.assert_mask_means_absent(lambda y, x, where=None: area_under_curve(y, x, where), y, x, where=where)


def test_closed_forms():
    assert area_under_curve(torch.full((5,), 3.0)) == 12.0
    x = torch.linspace(0, 1, 1001, dtype=torch.float64)
    cases.assert_same(area_under_curve(x.square(), x), 1 / 3, atol=1e-6)
    assert area_under_curve(torch.tensor([1, 2, 3])) == 4.0


def test_fewer_than_two_points_have_no_area():
    assert area_under_curve(torch.ones(2, 1)).isnan().all()
    assert area_under_curve(torch.ones(2, 0)).isnan().all()
    assert area_under_curve(torch.ones(3), where=torch.tensor([True, False, False])).isnan()
    assert area_under_curve(torch.tensor([1.0, torch.nan, 1.0])).isnan()
