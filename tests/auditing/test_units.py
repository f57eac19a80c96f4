"""Wins: units against a slow rewrite, the rules for ties and for what is missing, tests of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import veridical as vd
from tests.reference import functional as slow
from veridical.auditing.evidence import (
    HERE,
    SHOWN,
    THERE,
    Entry,
    Grid,
    Rules,
    SampleScores,
    Test,
    rates,
    units,
)
from veridical.functional.significance import STAKES

GRID = Grid(1e-5, 0.1)


def sample_scores(values, missing=None):
    table = torch.as_tensor(values, dtype=torch.float64)
    gone = torch.zeros(table.shape[-1], dtype=torch.bool) if missing is None else torch.as_tensor(missing)
    return SampleScores(table, gone)


def random_marks(seed, metrics=3, samples=20, holes=True):
    rng = np.random.default_rng(seed)
    table = rng.integers(-3, 4, (metrics, samples)).astype(float)
    if holes:
        table[rng.random(table.shape) < 0.1] = np.nan
    return sample_scores(table)


@pytest.mark.parametrize("seed", range(5))
def test_units_agree_with_a_slow_rewrite(seed):
    own, others = random_marks(seed), [random_marks(100 + 10 * seed + i) for i in range(4)]
    found = units(own, others, GRID)
    for i in range(own.samples):
        column = [other.utility[:, i].tolist() for other in others]
        assert found[i] == pytest.approx(slow.mean_win(own.utility[:, i].tolist(), column, *GRID))


def test_a_missing_map_loses_and_a_missing_score_ties():
    nan = math.nan
    own = sample_scores([[5.0, nan, 5.0, nan]], [False, False, True, True])
    other = sample_scores([[1.0, 1.0, 1.0, 1.0]], [False, False, False, True])
    assert units(own, [other], GRID).tolist() == [1.0, 0.5, 0.0, 0.5]
    assert units(other, [own], GRID).tolist() == [0.0, 0.5, 1.0, 0.5]


def test_a_control_without_a_map_is_not_beaten():
    own, control = sample_scores([[5.0, 5.0]]), sample_scores([[1.0, 1.0]], [False, True])
    assert units(own, [control], GRID).tolist() == [1.0, 1.0]
    assert units(own, [control.tied_where_missing()], GRID).tolist() == [1.0, 0.5]


def test_rounding_is_no_win():
    """Four methods equal to 4e-6 were told apart by their last digits."""
    own, other = sample_scores([[0.5, 0.5, 1e-7]]), sample_scores([[0.5 + 4e-6, 0.5 - 4e-6, 0.0]])
    assert units(own, [other], GRID).tolist() == [0.5, 0.5, 0.5]
    assert units(sample_scores([[0.5]]), [sample_scores([[0.5 - 1e-4]])], GRID).tolist() == [1.0]


@given(st.lists(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), max_size=40), min_size=1, max_size=4))
def test_rates_are_shares_with_the_slow_p(won):
    found = rates([torch.tensor(each, dtype=torch.float64) for each in won])
    for one, each in zip(found, won, strict=True):
        assert one.samples == len(each)
        assert one.p == pytest.approx(slow.betting_p(each, STAKES))
        assert math.isnan(one.rate) if not each else 0 <= one.low <= one.rate <= one.high <= 1


@given(st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0]), max_size=60), min_size=1, max_size=4))
def test_a_test_fails_at_a_level_shared_among_the_tests_of_a_method(won):
    units_of = {("removal", f"c{i}"): torch.tensor(each).double() for i, each in enumerate(won)}
    for test, each in zip(Test.all_of(units_of), won, strict=True):
        side, at = slow.settled(each, SHOWN, SHOWN / len(won), STAKES)
        assert (test.state, test.settled_at) == (("open", "shown", "fails")[side], at)


def test_a_question_that_was_not_reached_is_open():
    rules = Rules(("removal", "randomisation"), GRID, (0,), {"random": [sample_scores([[0.0] * 30])]}, {})
    entry = Entry("x", sample_scores([[1.0] * 30]))
    first, second = rules.questions(entry)
    assert (first.criterion, first.state) == ("removal", "shown")
    assert (second.criterion, second.state) == ("randomisation", "open")
    assert len(second.tests) == len((*HERE, *THERE))
    assert rules.samples_needed(entry, second) is None


def test_a_method_loses_no_more_easily_where_it_has_fewer_tests_run():
    """The level of "fails" counts the tests that there are, whether or not they were reached."""
    rules = Rules(("removal", "randomisation"), GRID, (0,), {"random": [sample_scores([[1.0] * 9])]}, {})
    lost = rules.questions(Entry("x", sample_scores([[0.0] * 9])))[0]
    alone = Rules(("removal",), GRID, (0,), rules.controls, {}).questions(
        Entry("x", sample_scores([[0.0] * 9]))
    )
    assert lost.state == "open"
    assert alone[0].state == "fails"


def test_the_grid_follows_the_precision():
    task = vd.Task(torch.nn.Linear(3, 2), torch.randn(4, 3))
    assert Grid.of(task) == pytest.approx((1e-5, 0.1))
    exact = vd.Task(torch.nn.Linear(3, 2).double(), torch.randn(4, 3).double())
    assert Grid.of(exact) == pytest.approx((1e-9, 1.0))
    numbers = vd.Task(torch.nn.Linear(3, 1), torch.randn(4, 3), head="regression")
    assert Grid.of(numbers).scale == pytest.approx(0.1 * float(numbers.outputs.abs().max()))
