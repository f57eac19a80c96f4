"""Tests and intervals: signed ranks, Holm, betting, the bootstrap."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.functional import cases
from tests.reference import functional as reference
from veridical.errors import InputError
from veridical.functional import (
    betting_p,
    betting_wealth,
    bootstrap_interval,
    holm,
    signed_rank,
    significance,
)
from veridical.functional.significance import STAKES


def scipy_test(d, method):
    return scipy.stats.wilcoxon(d.numpy(), zero_method="zsplit", method=method)


def test_signed_rank_agrees_with_scipy():
    for n in (1, 2, 5, 20, 49, 50, 51, 80):  # exact up to 50 where nothing ties
        d = cases.smooth(n, seed=n) + 0.3
        expected = scipy_test(d, "auto")
        got = signed_rank(d)
        cases.assert_same(got.statistic, expected.statistic)
        cases.assert_same(got.p, expected.pvalue)
    for n in (2, 6, 13, 14, 30, 60):  # normal with ties and zeros
        d = cases.tied(n, seed=n) + (cases.tied(n, seed=n + 1) > 0)
        expected = scipy_test(d, "asymptotic")
        got = signed_rank(d)
        cases.assert_same(got.statistic, expected.statistic)
        cases.assert_same(got.p, expected.pvalue)
        plus, minus = reference.rank_sums(d.tolist())
        cases.assert_same(got.rank_biserial, (plus - minus) / (plus + minus))


def test_the_exact_table_agrees_with_trying_all_signs():
    for n in range(1, 9):
        d = cases.smooth(n, seed=n)
        cases.assert_same(signed_rank(d).p, reference.sign_change_p(d.tolist()))
        cases.assert_same(signed_rank(d + 0.2).p, reference.sign_change_p((d + 0.2).tolist()))


@pytest.mark.parametrize("n", [1, 5, 60])
def test_identical_vectors(n):
    x = cases.smooth(3, n)
    test = signed_rank(x, x)
    assert (test.p == 1).all()
    assert (test.rank_biserial == 0).all()


@given(cases.numbers(1))
def test_swapping_the_vectors_flips_only_the_sign(values):
    x, y = cases.row(values), torch.zeros(len(values))
    forward, backward = signed_rank(x, y), signed_rank(y, x)
    assert forward.statistic == backward.statistic
    assert 0 < forward.p <= 1
    cases.assert_same(forward.p, backward.p)
    assert forward.rank_biserial == -backward.rank_biserial


def test_undefined_rows():
    x = torch.tensor([[1.0, torch.nan, 2.0], [1.0, 2.0, 3.0]])
    for part in signed_rank(x):
        assert part.isnan().tolist() == [True, False]
    for part in signed_rank(x, where=torch.zeros(3, dtype=torch.bool)):
        assert part.isnan().all()
    for part in signed_rank(torch.zeros(2, 0)):
        assert part.isnan().all()


PROBABILITIES = st.one_of(st.floats(0, 1), st.sampled_from([0.01, 0.05, 1.0, math.nan]))


def test_holm_agrees_with_its_definition():
    for p in (cases.smooth(6, 9).abs() / 50, cases.tied(6, 9).abs() / 40):
        cases.assert_same(holm(p), [reference.holm(r) for r in p.tolist()])
    # Holm (1979): by hand
    cases.assert_same(holm(cases.row([0.01, 0.04, 0.03, 0.005])), [0.03, 0.06, 0.06, 0.02])


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


def test_bootstrap_agrees_with_scipy():
    """Against SciPy's own percentile bootstrap: other draws, the same interval up to their noise."""
    x = cases.smooth(4, 60).exp()  # skewed, so that mean and median part
    for name, statistic in (("mean", np.mean), ("median", np.median)):
        for level in (0.5, 0.95):
            ours = bootstrap_interval(x, level, 4000, statistic=name)
            theirs = scipy.stats.bootstrap(
                (x.numpy(),), statistic, axis=-1, confidence_level=level, method="percentile",
                n_resamples=4000, vectorized=True, batch=500, rng=np.random.default_rng(0),
            ).confidence_interval  # fmt: skip
            scale = x.std(-1) / 60**0.5
            for got, expected in zip(ours, theirs, strict=True):
                assert ((got - torch.as_tensor(expected)).abs() / scale < 0.35).all()


def test_covers_a_normal_mean_about_as_often_as_promised():
    x = cases.smooth(400, 50)
    low, high = bootstrap_interval(x, 0.9, 500)
    covered = ((low < 0) & (high > 0)).double().mean().item()
    assert 0.84 < covered < 0.94


@pytest.mark.parametrize("statistic", ["mean", "median"])
def test_draws_depend_on_the_seed_alone(statistic, monkeypatch):
    x = cases.smooth(5, 33)
    state = torch.get_rng_state()
    whole = bootstrap_interval(x, resamples=100, statistic=statistic)
    assert torch.equal(torch.get_rng_state(), state)
    monkeypatch.setattr(significance, "_ENTRIES_AT_ONCE", 1)
    for got, again in zip(whole, bootstrap_interval(x, resamples=100, statistic=statistic), strict=True):
        cases.assert_same(got, again)
    for i in range(5):
        for got, alone in zip(
            whole, bootstrap_interval(x[i], resamples=100, statistic=statistic), strict=True
        ):
            cases.assert_same(got[i], alone)
    assert not torch.equal(whole.low, bootstrap_interval(x, resamples=100, seed=1, statistic=statistic).low)


@given(cases.numbers(1), st.sampled_from(["mean", "median"]))
def test_lies_within_the_data(values, statistic):
    x = cases.row(values)
    low, high = bootstrap_interval(x, resamples=20, statistic=statistic)
    slack = 1e-12 * x.abs().max()
    assert x.min() - slack <= low <= high <= x.max() + slack


def test_constant_rows_have_no_width():
    for part in bootstrap_interval(torch.full((3, 8), 2.0), resamples=10):
        assert part.tolist() == [2.0] * 3


def test_nan_in_gives_nan_out():
    x = torch.tensor([[1.0, torch.nan, 2.0], [1.0, 2.0, 3.0]])
    for part in bootstrap_interval(x, resamples=10):
        assert part.isnan().tolist() == [True, False]
    for part in bootstrap_interval(x, resamples=10, where=torch.zeros(3, dtype=torch.bool)):
        assert part.isnan().all()
    for part in bootstrap_interval(torch.zeros(2, 0)):
        assert part.isnan().all()


def test_mistakes_are_named():
    for options in ({"level": 1.5}, {"resamples": 0}, {"statistic": "mode"}):
        with pytest.raises(InputError, match=next(iter(options))):
            bootstrap_interval(torch.ones(3), **options)
