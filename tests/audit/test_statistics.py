"""The verdict's statistics against slow rewrites, SciPy and printed tables."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from tests.reference import audit as slow
from veridical.audit.statistics import (
    above_controls,
    better_than,
    critical_difference,
    kendall_w,
    pairwise,
    resampled_scores,
    shares_beaten,
    weighed,
)
from veridical.errors import InputError


def utilities(seed: int = 0, methods: int = 5, samples: int = 40) -> torch.Tensor:
    values = torch.randn(methods, samples, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    values = (values * 2).round() / 2  # ties
    values[1, :5] = torch.nan
    values[2, :2] = torch.nan
    values[:, 7] = torch.nan
    return values


def check_shares(function) -> None:
    given = utilities()
    expected = slow.shares_beaten(given.numpy())
    np.testing.assert_allclose(function(given).numpy(), expected, atol=1e-12)


def test_shares_beaten_equals_the_slow_rewrite():
    check_shares(shares_beaten)


@pytest.mark.parametrize(
    "mutant",
    [
        lambda u: shares_beaten(-u),
        lambda u: shares_beaten(u.nan_to_num(0.0)),
        lambda u: shares_beaten(u) * (len(u) - 1) / len(u),
    ],
)
def test_wrong_shares_are_caught(mutant):
    with pytest.raises(AssertionError):
        check_shares(mutant)


def test_shares_do_not_depend_on_the_scale_of_a_metric():
    given = utilities()
    torch.testing.assert_close(
        shares_beaten(given), shares_beaten(given * 1e3 + 5), equal_nan=True, rtol=0, atol=0
    )


def test_shares_of_all_methods_average_one_half():
    shares = shares_beaten(utilities())
    assert torch.allclose(shares[:, ~shares.isnan().any(0)].mean(0), torch.tensor(0.5, dtype=torch.float64))


def test_one_method_has_no_rivals():
    with pytest.raises(InputError, match="at least two"):
        shares_beaten(torch.zeros(1, 3))


def test_weighed_equals_the_slow_rewrite():
    shares = torch.stack([shares_beaten(utilities(seed)) for seed in range(3)], 1)
    shares[:, 1, 3] = torch.nan
    weights = torch.tensor([0.5, 0.2, 0.3])
    np.testing.assert_allclose(
        weighed(shares, weights).numpy(), slow.weighed(shares.numpy(), weights.double().numpy()), atol=1e-7
    )


def test_kendall_w_closed_forms_and_ties():
    same = torch.arange(6.0).repeat(4, 1)
    assert kendall_w(same).w == pytest.approx(1.0)
    opposed = torch.stack([torch.arange(6.0), -torch.arange(6.0)])
    assert kendall_w(opposed).w == pytest.approx(0.0)
    tied = (torch.randn(5, 8, generator=torch.Generator().manual_seed(3)) * 2).round()
    assert kendall_w(tied).w == pytest.approx(slow.kendall_w(tied.numpy()))


def test_kendall_p_is_friedmans():
    scores = torch.randn(12, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    expected = stats.friedmanchisquare(*scores.numpy().T).pvalue
    assert kendall_w(scores).p == pytest.approx(expected)
    assert critical_difference(scores.T).friedman_p == pytest.approx(expected)


def test_a_judge_against_the_others_is_seen():
    scores = torch.stack([torch.arange(6.0), torch.arange(6.0), -torch.arange(6.0)])
    assert kendall_w(scores).with_rest[2] == pytest.approx(-1.0)


@pytest.mark.parametrize(("methods", "q"), [(2, 1.960), (5, 2.728), (10, 3.164)])
def test_critical_difference_has_the_printed_quantiles(methods, q):
    """Demsar 2006, Table 5(a): q at 0.05 of the Nemenyi test."""
    table = torch.randn(methods, 30, generator=torch.Generator().manual_seed(0))
    expected = q * math.sqrt(methods * (methods + 1) / (6 * 30))
    assert critical_difference(table).difference == pytest.approx(expected, abs=2e-3)


def test_groups_hold_what_cannot_be_told_apart():
    base = torch.randn(50, generator=torch.Generator().manual_seed(0))
    noise = torch.randn(2, 50, generator=torch.Generator().manual_seed(1))
    table = torch.stack([base + 5, base + noise[0], base + noise[1]])
    found = critical_difference(table)
    assert found.mean_rank[0] == 1.0
    assert {frozenset(group) for group in found.groups} == {frozenset({1, 2})}


def test_pairwise_is_wilcoxon_with_holm():
    table = torch.randn(3, 60, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    table[0] += 0.5
    found = pairwise(table)
    expected = [
        stats.wilcoxon(table[a].numpy(), table[b].numpy(), zero_method="zsplit", method="approx").pvalue
        for a, b in found.members.tolist()
    ]
    np.testing.assert_allclose(found.p.numpy(), expected, rtol=1e-9)
    assert (found.p_holm >= found.p).all()
    assert found.difference[0] == pytest.approx(float((table[0] - table[1]).mean()))


@pytest.mark.parametrize("samples", [3, 5, 8])
def test_tied_differences_are_tested_exactly(samples):
    """All samples say the same: one sign pattern of 2^n, where a normal approximation is far too sure."""
    table = torch.stack([torch.ones(samples), torch.zeros(samples)])
    assert float(pairwise(table).p) == pytest.approx(2 * 0.5**samples)
    assert float(better_than((table[:1] - table[1:])[:, None])[1]) == pytest.approx(0.5**samples)


def test_rounding_is_not_ranked():
    """A wins GEF's third of the vote and B the other two sixths, always: that is a tie."""
    shares = torch.tensor([[1.0, 0.0, 0.0, 0.5, 0.5], [0.0, 1.0, 1.0, 0.5, 0.5]], dtype=torch.float64)
    weights = torch.tensor([1 / 3, 1 / 6, 1 / 6, 1 / 6, 1 / 6], dtype=torch.float64)
    table = weighed(shares[:, :, None].expand(-1, -1, 43), weights / weights.sum())
    assert float(pairwise(table).p) == 1.0


def test_more_pairs_than_fit_at_once():
    table = torch.randn(56, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = pairwise(table)
    assert len(found.p) == 56 * 55 // 2
    pair = 1500
    a, b = found.members[pair].tolist()
    assert found.p[pair] == pytest.approx(stats.wilcoxon(table[a].numpy(), table[b].numpy()).pvalue)


def test_infinite_scores_leave_the_others_apart():
    best = shares_beaten(torch.tensor([[torch.inf], [3.0], [1.0], [torch.nan]]))[:, 0]
    torch.testing.assert_close(best, torch.tensor([3.0, 2.0, 1.0, 0.0], dtype=torch.float64) / 3)
    worst = shares_beaten(torch.tensor([[1e20], [-1e20], [torch.nan]]))[:, 0]
    assert worst.tolist() == [1.0, 0.5, 0.0]


def test_better_than_is_one_sided():
    generator = torch.Generator().manual_seed(2)
    noise = torch.randn(3, 1, 60, generator=generator) * 0.3
    difference, p = better_than(torch.tensor([1.0, 0.0, -1.0])[:, None, None] + noise)
    assert p[0, 0] < 1e-6
    assert p[1, 0] > 0.01
    assert p[2, 0] > 0.99
    assert difference[0, 0] > 0 > difference[2, 0]


def test_a_method_that_is_worse_on_average_is_not_above():
    """Slightly better nearly everywhere, far worse in a few samples: the ranks alone would call it better."""
    difference = torch.cat([torch.full((40,), 0.1), torch.full((8,), -0.9)])[None, None]
    assert float(pairwise(torch.cat([difference[0], torch.zeros(1, 48)])).p) < 0.05
    mean, p = better_than(difference)
    assert float(mean) < 0
    assert float(p) > 0.5


def test_a_control_without_a_value_is_not_beaten():
    """Two explainers and a control; the control lacks metric 0 everywhere and wins metric 1."""
    utility = torch.tensor([[3.0, 0.0], [2.0, 1.0], [torch.nan, 2.0]])[:, :, None].expand(-1, -1, 20)
    shares = torch.stack([shares_beaten(utility[:, m]) for m in range(2)], 1)
    controls = torch.tensor([False, False, True])
    gap = above_controls(shares, torch.tensor([0.9, 0.1]), controls, utility.isnan())
    assert gap[:, 0, 0].tolist() == [-1.0, -0.5]
    shares[:, 1], utility = torch.nan, torch.full_like(utility, torch.nan)
    assert above_controls(shares, torch.tensor([0.9, 0.1]), controls, utility.isnan()).isnan().all()
    assert (better_than(torch.full((2, 1, 20), torch.nan))[1] > 0.05).all()


def shares_of_a_clear_order(samples: int = 40) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    utility = torch.tensor([3.0, 2.0, 1.0, 0.0])[:, None, None] + torch.randn(
        4, 2, samples, generator=generator
    )
    return torch.stack([shares_beaten(utility[:, m]) for m in range(2)], 1)


def test_resampling_centres_on_the_scores_and_finds_the_best():
    shares = shares_of_a_clear_order()
    candidates = torch.tensor([True, True, True, False])
    found = resampled_scores(shares, torch.tensor([0.5, 0.5]), candidates)
    assert ((found.low < found.score) & (found.score < found.high)).all()
    assert found.best[0] > 0.95
    assert found.best[3] == 0
    assert found.best.sum() == pytest.approx(1.0)
    assert found.rank[:3].tolist() == [1, 2, 3]
    assert found.rank[3].isnan()


def test_intervals_cover_as_often_as_they_say():
    """Samples from one population: the interval must hold the population's value about 95% of the time."""
    everyone = shares_of_a_clear_order(4000)
    truth = weighed(everyone, torch.ones(2)).mean(1)
    candidates = torch.ones(4, dtype=torch.bool)
    hits = []
    for at in range(0, 4000, 40):
        found = resampled_scores(everyone[:, :, at : at + 40], torch.ones(2), candidates, resamples=400)
        hits.append((found.low <= truth) & (truth <= found.high))
    assert 0.88 < torch.stack(hits).double().mean() < 0.99


def test_doubt_about_weights_widens_intervals():
    """Two metrics that contradict each other: which one to believe decides everything."""
    one = shares_of_a_clear_order()[:, :1]
    shares = torch.cat([one, 1 - one], 1)
    candidates = torch.ones(4, dtype=torch.bool)
    weights = torch.tensor([0.5, 0.5])
    sure = resampled_scores(shares, weights, candidates)
    draws = torch.rand(200, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    unsure = resampled_scores(shares, weights, candidates, weight_draws=torch.cat([draws, 1 - draws], 1))
    assert ((unsure.high - unsure.low)[0] > 3 * (sure.high - sure.low)[0]).all()


def test_nothing_to_score_is_refused():
    with pytest.raises(InputError, match="no sample has a value"):
        resampled_scores(torch.full((2, 1, 3), torch.nan), torch.ones(1), torch.ones(2, dtype=torch.bool))


def test_samples_without_any_value_are_never_drawn():
    shares = torch.full((3, 1, 10), torch.nan, dtype=torch.float64)
    shares[:, 0, 0] = torch.tensor([1.0, 0.5, 0.0])
    found = resampled_scores(shares, torch.ones(1), torch.tensor([True, True, False]))
    assert found.best.tolist() == [1.0, 0.0, 0.0]
    assert found.rank_high[:2].tolist() == [1.0, 2.0]
