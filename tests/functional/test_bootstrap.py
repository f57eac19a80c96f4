from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.functional import cases
from veridical.errors import InputError
from veridical.functional import bootstrap, bootstrap_interval


def check_interval(function):
    """Against SciPy's own percentile bootstrap: other draws, the same interval up to their noise."""
    x = cases.smooth(4, 60).exp()  # skewed, so that mean and median part
    for name, statistic in (("mean", np.mean), ("median", np.median)):
        for level in (0.5, 0.95):
            ours = function(x, level, 4000, statistic=name)
            theirs = scipy.stats.bootstrap(
                (x.numpy(),), statistic, axis=-1, confidence_level=level, method="percentile",
                n_resamples=4000, vectorized=True, batch=500, rng=np.random.default_rng(0),
            ).confidence_interval  # fmt: skip
            scale = x.std(-1) / 60**0.5
            for got, expected in zip(ours, theirs, strict=True):
                assert ((got - torch.as_tensor(expected)).abs() / scale < 0.35).all()


def test_agrees_with_scipy():
    check_interval(bootstrap_interval)


def without_replacement(x, level, resamples, statistic):
    mid = x.mean(-1) if statistic == "mean" else x.median(-1).values
    return mid, mid


def of_values(x, level, resamples, statistic):
    return x.quantile((1 - level) / 2, -1), x.quantile((1 + level) / 2, -1)


@pytest.mark.parametrize(
    "mutant",
    [
        without_replacement,
        of_values,
        lambda x, level, resamples, statistic: bootstrap_interval(
            x, level / 2, resamples, statistic=statistic
        ),
        lambda x, level, resamples, statistic: bootstrap_interval(x, level, resamples, statistic="mean"),
        lambda x, level, resamples, statistic: bootstrap_interval(x, level, resamples, statistic=statistic)[
            ::-1
        ],
    ],
)
def test_wrong_intervals_fail_the_check(mutant):
    with pytest.raises(AssertionError):
        check_interval(mutant)


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
    monkeypatch.setattr(bootstrap, "_ENTRIES_AT_ONCE", 1)
    for got, again in zip(whole, bootstrap_interval(x, resamples=100, statistic=statistic), strict=True):
        cases.assert_same(got, again)
    for i in range(5):
        for got, alone in zip(
            whole, bootstrap_interval(x[i], resamples=100, statistic=statistic), strict=True
        ):
            cases.assert_same(got[i], alone)
    assert not torch.equal(whole.low, bootstrap_interval(x, resamples=100, seed=1, statistic=statistic).low)


@pytest.mark.parametrize("statistic", ["mean", "median"])
@pytest.mark.parametrize("end", [0, 1])
def test_masked_entries_do_not_exist(statistic, end):
    def one_end(x, where=None):
        return bootstrap_interval(x, resamples=50, statistic=statistic, where=where)[end]

    cases.assert_mask_means_absent(one_end, cases.smooth(6, 20), where=cases.mask(6, 20))


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
