"""Wins and the leading group."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.functional import cases
from tests.reference import functional as reference
from veridical.errors import InputError, ShapeError
from veridical.functional import leading_group, mean_units, win_units
from veridical.functional.selection import range_p

SCORES = st.one_of(
    st.floats(allow_nan=True), st.sampled_from([0.0, 1.0, 1.0 + 1e-6, -1.0, 1e-7, math.inf, -math.inf])
)


@given(
    SCORES,
    SCORES,
    st.sampled_from([0.0, 1e-9, 1e-5]),
    st.sampled_from([0.0, 1.0]),
    st.booleans(),
    st.booleans(),
)
def test_agrees_with_the_definition(own, other, grid, scale, no_map, other_no_map):
    got = win_units(
        cases.row([own]),
        cases.row([other]),
        grid,
        scale=scale,
        no_map=torch.tensor([no_map]),
        other_no_map=torch.tensor([other_no_map]),
    )
    assert got.tolist() == [reference.win_unit(own, other, grid, scale, no_map, other_no_map)]


def test_integers_and_half_precision_and_a_bad_grid():
    assert win_units(torch.tensor([2, 1]), torch.tensor([1, 1]), 0.0).tolist() == [1.0, 0.5]
    assert win_units(torch.ones(2).half(), torch.zeros(2).bfloat16(), 1e-2).tolist() == [1.0, 1.0]
    with pytest.raises(InputError, match="grid"):
        win_units(torch.ones(1), torch.ones(1), 1.5)


def units_of(scores):
    return win_units(scores[:, None], scores[None], 1e-9)


def test_mean_units_are_those_of_the_definition():
    units = units_of(cases.tied(5, 7))
    cases.assert_same(mean_units(units), reference.member_units(units.tolist(), list(range(5))))


@pytest.mark.parametrize("methods", [2, 3])
def test_p_is_the_share_of_all_orders_within_samples(methods):
    scores = cases.smooth(methods, 4)
    scores[0] += 0.8
    own = mean_units(units_of(scores))
    found = range_p(own, 20_000, torch.Generator().manual_seed(0))
    assert found == pytest.approx(reference.exact_range_p(own.tolist()), abs=0.015)


def test_a_ladder_keeps_its_top_and_equal_methods_stay_and_leave_together():
    scores = cases.smooth(4, 200) + 3 * torch.tensor([0.0, 1.0, 1.0, 2.0])[:, None]
    assert leading_group(units_of(scores)) == (3,)
    alike = cases.smooth(1, 60).expand(4, 60)
    assert leading_group(units_of(alike)) == (0, 1, 2, 3)
    assert leading_group(units_of(torch.cat([alike + 5, alike]))) == (0, 1, 2, 3)


def test_a_level_split_over_looks_drops_less():
    scores = cases.smooth(2, 24, seed=3)
    scores[0] += 0.7
    units = units_of(scores)
    p = range_p(mean_units(units), 1999, torch.Generator().manual_seed(0))
    assert leading_group(units, level=p * 1.01) == (0,)
    assert leading_group(units, level=p * 1.01, analyses=2) == (0, 1)


def test_it_leaves_its_input_and_takes_gaps_for_ties():
    units = units_of(cases.smooth(5, 30))
    before = units.clone()
    leading_group(units)
    assert torch.equal(units, before)
    holed = units.clone()
    holed[0, 1, 3] = holed[1, 0, 3] = torch.nan
    tied = units.clone()
    tied[0, 1, 3] = tied[1, 0, 3] = 0.5
    assert leading_group(holed) == leading_group(tied)
    assert leading_group(units[:1, :1]) == (0,)


def test_all_equal_gives_one_group_nearly_always():
    generator = torch.Generator().manual_seed(0)
    kept = [
        len(leading_group(units_of(torch.randn(5, 24, generator=generator)), permutations=199))
        for _ in range(150)
    ]
    assert sum(k == 5 for k in kept) >= 150 * 0.95 - 3 * (150 * 0.05 * 0.95) ** 0.5


def test_bad_arguments_are_refused():
    with pytest.raises(ShapeError, match=r"\(E, E, N\)"):
        leading_group(torch.rand(3, 4, 5))
    with pytest.raises(InputError, match="analyses"):
        leading_group(torch.rand(3, 3, 5), analyses=0)
