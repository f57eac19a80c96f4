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
    confidence_sequence,
    holm,
    settle,
    signed_rank,
    significance,
    units_to_settle,
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


def test_ties_and_losses_show_nothing_and_long_rows_stay_finite():
    assert betting_p(torch.full((1000,), 0.5)).item() == 1.0
    assert betting_p(torch.zeros(1000)).item() == 1.0
    assert betting_p(torch.ones(2000, dtype=torch.int)).item() == 0.0
    assert betting_p(torch.full((3,), torch.nan)).item() == 1.0
    assert betting_p(torch.zeros(2, 0)).tolist() == [1.0, 1.0]


def test_units_outside_of_the_unit_interval_are_refused():
    with pytest.raises(InputError, match=r"\[0, 1\], got values from -0.5 to 2.0"):
        betting_p(torch.tensor([0.0, 2.0, -0.5]))


@given(UNITS, st.sampled_from([0.3, 0.05, 0.01]), st.sampled_from([0.3, 0.05]))
def test_settling_is_that_of_the_definition(units, shown, fails):
    found = settle(cases.row(units), shown, fails)
    assert (int(found.side), int(found.at)) == reference.settled(units, shown, fails, STAKES)


def test_the_bound_crossed_first_settles_and_later_units_change_nothing():
    wins, losses = torch.ones(9), torch.zeros(60)
    assert settle(torch.cat([wins, losses])) == (1, 9)
    assert settle(torch.cat([losses, wins.repeat(9)])) == (-1, 9)
    units = torch.rand(300, 40, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    whole = settle(units, 0.2, 0.1)
    for count in (5, 20, 39):
        part = settle(units[:, :count], 0.2, 0.1)
        early = part.side != 0
        assert torch.equal(part.side[early], whole.side[early])
        assert torch.equal(part.at[early], whole.at[early])
        assert torch.equal(whole.side[(whole.at > 0) & (whole.at <= count)], part.side[early])
    where = cases.mask(300, 40)
    assert torch.equal(settle(units, where=where).side, settle(units.masked_fill(~where, torch.nan)).side)


GRID_OF_MEANS = [i / 400 for i in range(1, 400)]


@given(st.lists(st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.5, 1.0])), min_size=1, max_size=25))
def test_the_interval_holds_the_means_that_no_gambler_refuted(units):
    low, high = (float(end) for end in confidence_sequence(cases.row(units), 0.9))
    kept = reference.kept_means(units, 0.9, STAKES, GRID_OF_MEANS)
    mean, step = math.fsum(units) / len(units), 1 / 400
    if kept:
        assert low <= kept[0] + 1e-9
        assert high >= kept[-1] - 1e-9
        assert abs(low - min(kept[0], mean)) <= step + 1e-9
        assert abs(high - max(kept[-1], mean)) <= step + 1e-9
    assert low <= mean + 1e-12
    assert high >= mean - 1e-12


def test_the_interval_of_wins_alone_has_a_closed_form():
    """n wins leave out m where the mean over stakes of (1 - s + s / m)^n reaches 200."""
    for n in (9, 24, 64):
        low, high = (float(end) for end in confidence_sequence(torch.ones(n)))
        assert high == 1.0
        wealth = sum((1 - s + s / low) ** n for s in STAKES) / len(STAKES)
        assert wealth == pytest.approx(200, rel=1e-5)
        other = confidence_sequence(torch.zeros(n))
        assert (float(other.low), float(other.high)) == pytest.approx((0.0, 1 - low), abs=1e-8)


def _ever_outside(interval, units, mean):
    """The share of rows whose interval leaves the mean out at any length."""
    outside = torch.zeros(len(units), dtype=torch.bool)
    for count in range(1, units.shape[-1] + 1):
        low, high = interval(units[:, :count])
        outside |= (low > mean) | (high < mean)
    return float(outside.double().mean())


def _wilson(units, z=1.6449):
    """The interval that stood here before, at 90%: it holds at one length."""
    n, share = units.shape[-1], units.mean(-1)
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    reach = z * (share * (1 - share) / n + (z / (2 * n)) ** 2).sqrt() / (1 + z * z / n)
    return middle - reach, middle + reach


@pytest.mark.parametrize("mean", [0.2, 0.5, 0.9])
def test_intervals_cover_at_every_length_at_once(mean):
    generator = torch.Generator().manual_seed(int(100 * mean))
    units = (torch.rand(400, 60, generator=generator) < mean).double()
    assert _ever_outside(lambda seen: confidence_sequence(seen, 0.9), units, mean) <= 0.1
    assert _ever_outside(_wilson, units, mean) > 0.2


@pytest.mark.parametrize("mutant", ["half the bound", "one side's level", "largest wealth", "last wealth"])
def test_mutants_of_the_bounds_are_found(mutant, monkeypatch):
    """Each of these is a slip that a reader would hardly see; the tests above do."""
    units = cases.row([1.0] * 9 + [0.0] * 60)
    if mutant == "half the bound":
        monkeypatch.setattr(significance.math, "log", lambda x: math.log2(x) / 2)
        with pytest.raises(AssertionError):
            test_the_interval_of_wins_alone_has_a_closed_form()
    elif mutant == "one side's level":
        honest = significance._log_wealth
        monkeypatch.setattr(significance, "_log_wealth", lambda u, w: honest(u, w) + 0.5)
        with pytest.raises(AssertionError):
            assert settle(units[:8]).side == 0
    elif mutant == "largest wealth":
        monkeypatch.setattr(significance, "_first_crossing", _last_crossing)
        with pytest.raises(AssertionError):
            test_the_bound_crossed_first_settles_and_later_units_change_nothing()
    else:
        honest_end = significance._lower_end
        last = lambda u, here, bound: honest_end(u[..., -1:], here[..., -1:], bound)  # noqa: E731
        monkeypatch.setattr(significance, "_lower_end", last)
        with pytest.raises(AssertionError):
            test_the_interval_of_wins_alone_has_a_closed_form()


def _last_crossing(up, down):
    """A mutant: a row that both gamblers won is failed, whoever was first."""
    side = torch.where(down.any(-1), -1, up.any(-1).long())
    return significance.Settled(side, side.abs())


def test_how_many_units_would_settle_it():
    assert units_to_settle(torch.ones(1, 4)) == 9  # every further unit is a win, too
    assert units_to_settle(torch.zeros(1, 4)) == 9
    assert units_to_settle(torch.full((1, 30), 0.5)) is None
    assert units_to_settle(torch.ones(1, 0)) is None
    one = torch.tensor([[1.0, 1.0, 0.0, 1.0, 1.0, 0.5, 1.0, 0.0]])
    both = torch.cat([one, torch.ones(1, 8)])
    assert units_to_settle(both) == units_to_settle(one)  # the weaker one decides
    assert units_to_settle(torch.cat([one, torch.zeros(1, 8)])) == 9  # any that fails settles it
    assert units_to_settle(one, shown=0.1) < units_to_settle(one)
    assert units_to_settle(one) == units_to_settle(one)  # the same draws


def test_bootstrap_agrees_with_scipy():
    """Against SciPy's own percentile bootstrap: other draws, the same interval up to their noise."""
    x = cases.smooth(4, 60).exp()  # skewed
    for level in (0.5, 0.95):
        ours = bootstrap_interval(x, level, 4000)
        theirs = scipy.stats.bootstrap(
            (x.numpy(),), np.mean, axis=-1, confidence_level=level, method="percentile",
            n_resamples=4000, vectorized=True, batch=500, rng=np.random.default_rng(0),
        ).confidence_interval  # fmt: skip
        scale = x.std(-1) / 60**0.5
        for got, expected in zip(ours, theirs, strict=True):
            assert ((got - torch.as_tensor(expected)).abs() / scale < 0.35).all()


def test_draws_depend_on_the_seed_alone(monkeypatch):
    x = cases.smooth(5, 33)
    state = torch.get_rng_state()
    whole = bootstrap_interval(x, resamples=100)
    assert torch.equal(torch.get_rng_state(), state)
    monkeypatch.setattr(significance, "_ENTRIES_AT_ONCE", 1)
    for got, again in zip(whole, bootstrap_interval(x, resamples=100), strict=True):
        cases.assert_same(got, again)
    assert not torch.equal(whole.low, bootstrap_interval(x, resamples=100, seed=1).low)


def test_nan_in_gives_nan_out():
    x = torch.tensor([[1.0, torch.nan, 2.0], [1.0, 2.0, 3.0]])
    for part in bootstrap_interval(x, resamples=10):
        assert part.isnan().tolist() == [True, False]
    for part in bootstrap_interval(torch.zeros(2, 0)):
        assert part.isnan().all()


def test_mistakes_are_named():
    for options in ({"level": 1.5}, {"resamples": 0}):
        with pytest.raises(InputError, match=next(iter(options))):
            bootstrap_interval(torch.ones(3), **options)
