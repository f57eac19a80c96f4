"""Wins: units against a slow rewrite, the rules for ties and for what is missing, intervals of shares."""

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
    THERE,
    Entry,
    Grid,
    Rules,
    SampleScores,
    Test,
    corrected,
    largest_p,
    rate,
    units,
    wilson,
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


@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=80))
def test_a_rate_is_a_share_and_its_p_is_the_slow_one(won):
    found = rate(torch.tensor(won, dtype=torch.float64))
    assert 0 <= found.low <= found.rate <= found.high <= 1
    assert found.p == pytest.approx(slow.betting_p(won, STAKES))
    assert found.samples == len(won)


def test_wilson_is_the_textbook_interval():
    z, n, p = 1.959963984540054, 30, 0.8
    middle, reach = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    expected = [(middle + sign * reach) / (1 + z * z / n) for sign in (-1, 1)]
    assert wilson(p, n) == pytest.approx(expected)
    low, high = wilson(1.0, 24)
    assert 0.8 < low < high == 1.0


def test_the_largest_p_decides_and_holm_counts_everybody():
    tests = [
        Test("removal", "a", 0.9, 0.8, 1.0, 0.001, 24),
        Test("randomisation", "b", 0.6, 0.4, 0.8, 0.3, 24),
    ]
    assert largest_p(tests) == 0.3
    assert largest_p([]) == 1.0
    p = {"a": 0.02, "b": 0.01, "c": 0.5}
    assert list(corrected(p).values()) == pytest.approx(slow.holm(list(p.values())))


def test_a_line_that_was_not_reached_counts_as_lost():
    rules = Rules(("removal", "randomisation"), GRID, (0,), {"random": [sample_scores([[0.0] * 30])]}, {})
    found = rules.tests(Entry("x", sample_scores([[1.0] * 30])))
    assert [test.criterion for test in found] == ["removal", *["randomisation"] * len((*HERE, *THERE))]
    assert found[0].p < 1e-5
    assert largest_p(found) == 1.0


def test_the_grid_follows_the_precision():
    task = vd.Task(torch.nn.Linear(3, 2), torch.randn(4, 3))
    assert Grid.of(task) == pytest.approx((1e-5, 0.1))
    exact = vd.Task(torch.nn.Linear(3, 2).double(), torch.randn(4, 3).double())
    assert Grid.of(exact) == pytest.approx((1e-9, 1.0))
    numbers = vd.Task(torch.nn.Linear(3, 1), torch.randn(4, 3), head="regression")
    assert Grid.of(numbers).scale == pytest.approx(0.1 * float(numbers.outputs.abs().max()))
