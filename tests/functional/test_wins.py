from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.functional import cases
from tests.reference import verdict_statistics as reference
from veridical.errors import InputError
from veridical.functional import win_units

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


def test_all_pairs_add_up_to_one():
    scores = cases.tied(6, 20)
    scores[2, 3] = torch.nan
    missing = torch.zeros(6, 20, dtype=torch.bool)
    missing[4, 5] = missing[1, 5] = missing[0, 0] = True
    units = win_units(
        scores[:, None], scores[None], 1e-5, no_map=missing[:, None], other_no_map=missing[None]
    )
    cases.assert_same(units + units.transpose(0, 1), torch.ones(6, 6, 20))


def test_rounding_ties_and_tiny_scores_tie_where_a_scale_is_given():
    own, other = torch.tensor([1.0, 1.0, 1e-8]), torch.tensor([1.0 + 5e-6, 1.001, -1e-8])
    assert win_units(own, other, 1e-5).tolist() == [0.5, 0.0, 1.0]
    assert win_units(own, other, 1e-5, scale=1.0).tolist() == [0.5, 0.0, 0.5]


def test_integers_and_half_precision_and_a_bad_grid():
    assert win_units(torch.tensor([2, 1]), torch.tensor([1, 1]), 0.0).tolist() == [1.0, 0.5]
    assert win_units(torch.ones(2).half(), torch.zeros(2).bfloat16(), 1e-2).tolist() == [1.0, 1.0]
    with pytest.raises(InputError, match="grid"):
        win_units(torch.ones(1), torch.ones(1), 1.5)
