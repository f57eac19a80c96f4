from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.functional import cases
from tests.reference import verdict_statistics as reference
from veridical.errors import InputError
from veridical.functional import betting_p, betting_wealth
from veridical.functional.significance import STAKES

UNITS = st.lists(st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.5, 1.0, math.nan])), max_size=12)
# shapes of units whose mean is exactly 1/2: a fair coin, ties, many small wins, few large ones
FAIR = {
    "coin": ([0.0, 1.0], [0.5, 0.5]),
    "ties": ([0.0, 0.5, 1.0], [0.1, 0.8, 0.1]),
    "often a little": ([0.0, 0.625], [0.2, 0.8]),
    "seldom a lot": ([0.375, 1.0], [0.8, 0.2]),
    "three metrics": ([0.0, 1 / 3, 2 / 3, 1.0], [0.4, 0.1, 0.1, 0.4]),
}


@given(UNITS)
def test_wealth_and_p_are_those_of_the_definition(units):
    cases.assert_same(betting_wealth(cases.row(units)), reference.wealth(units, STAKES))
    cases.assert_same(betting_p(cases.row(units)), reference.betting_p(units, STAKES))


@pytest.mark.parametrize("kind", FAIR)
def test_no_bet_gains_on_units_that_are_fair(kind):
    """The mean of the wealth over every sequence of outcomes is 1, at every length."""
    outcomes, chances = map(cases.row, FAIR[kind])
    assert math.isclose(float(outcomes @ chances), 0.5)
    picks = torch.cartesian_prod(*[torch.arange(len(outcomes))] * 6)
    weight = chances[picks].prod(-1)
    mean = (weight[:, None] * betting_wealth(outcomes[picks])).sum(0)
    cases.assert_same(mean, torch.ones(6))


@pytest.mark.parametrize("kind", FAIR)
@pytest.mark.parametrize("level", [0.05, 0.3])
def test_looking_at_every_unit_costs_nothing(kind, level):
    """p ever falls to the level in at most that share of all sequences (every one is counted)."""
    outcomes, chances = map(cases.row, FAIR[kind])
    length = 13 if len(outcomes) == 2 else 8
    picks = torch.cartesian_prod(*[torch.arange(len(outcomes))] * length)
    ever = betting_p(outcomes[picks]) <= level
    assert float((chances[picks].prod(-1) * ever).sum()) <= level


def test_more_units_never_raise_p_and_gaps_change_nothing():
    units = torch.rand(5, 30, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    p = torch.stack([betting_p(units[:, :n]) for n in range(31)], -1)
    assert bool((p.diff(dim=-1) <= 0).all())
    assert p[:, 0].tolist() == [1.0] * 5
    where = cases.mask(5, 30)
    cases.assert_mask_means_absent(betting_wealth, units, where=where)
    gaps = units.masked_fill(~where, torch.nan)
    cases.assert_same(betting_p(gaps), betting_p(units, where))


def test_the_last_wealth_does_not_depend_on_the_order():
    units = torch.rand(40, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    cases.assert_same(betting_wealth(units.flip(-1))[-1], betting_wealth(units)[-1])


def test_ties_and_losses_show_nothing_and_long_rows_stay_finite():
    assert betting_p(torch.full((1000,), 0.5)).item() == 1.0
    assert betting_p(torch.zeros(1000)).item() == 1.0
    assert betting_p(torch.ones(2000, dtype=torch.int)).item() == 0.0
    assert betting_p(torch.full((3,), torch.nan)).item() == 1.0
    assert betting_p(torch.zeros(2, 0)).tolist() == [1.0, 1.0]


def test_units_outside_of_the_unit_interval_are_refused():
    with pytest.raises(InputError, match=r"\[0, 1\], got values from -0.5 to 2.0"):
        betting_p(torch.tensor([0.0, 2.0, -0.5]))
