from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.functional import cases
from tests.reference import functional_ranking as reference
from veridical.errors import ShapeError
from veridical.functional import (
    centred_ranks,
    cosine,
    has_spread,
    partial_rank_correlation,
    pearson,
    spearman,
)

PAIRS = [
    (cases.smooth(6, 20), cases.smooth(6, 20, seed=1)),
    (cases.tied(6, 20), cases.tied(6, 20, seed=1)),
    (cases.tied(6, 20), cases.smooth(6, 20, seed=1)),
]


def check_pearson(function):
    for x, y in PAIRS:
        expected = [scipy.stats.pearsonr(a, b).statistic for a, b in zip(x.numpy(), y.numpy(), strict=True)]
        cases.assert_same(function(x, y), expected)


def check_spearman(function):
    for x, y in PAIRS:
        expected = [scipy.stats.spearmanr(a, b).statistic for a, b in zip(x.numpy(), y.numpy(), strict=True)]
        cases.assert_same(function(x, y), expected)


def test_agree_with_scipy():
    check_pearson(pearson)
    check_spearman(spearman)


def test_ranks_taken_once_give_the_same_correlation():
    check_spearman(lambda x, y: cosine(centred_ranks(x), centred_ranks(y)))
    x, y, where = cases.tied(6, 23), cases.smooth(6, 23), cases.mask(6, 23)
    masked = cosine(centred_ranks(x, where), centred_ranks(y, where), where)
    cases.assert_same(masked, spearman(x, y, where))
    with pytest.raises(AssertionError):  # of values that are not ranked
        check_spearman(cosine)


def min_rank_spearman(x, y):
    return pearson(*(torch.as_tensor(scipy.stats.rankdata(v.numpy(), "min", axis=-1)) for v in (x, y)))


def mixed_ddof(x, y):
    n = x.shape[-1]
    return pearson(x, y) * (n - 1) / n


@pytest.mark.parametrize(
    ("check", "mutant"),
    [
        (check_pearson, lambda x, y: -pearson(x, y)),
        (check_pearson, mixed_ddof),
        (check_pearson, spearman),
        (check_pearson, lambda x, y: torch.cosine_similarity(x, y, -1)),
        (check_spearman, lambda x, y: spearman(x, -y)),
        (check_spearman, min_rank_spearman),
        (check_spearman, pearson),
    ],
)
def test_wrong_formulas_fail_the_checks(check, mutant):
    with pytest.raises(AssertionError):
        check(mutant)


@pytest.mark.parametrize("function", [pearson, spearman])
def test_masked_entries_do_not_exist(function):
    for x, y in PAIRS:
        cases.assert_mask_means_absent(function, x, y, where=cases.mask(6, 20))
    few = torch.zeros(6, 20, dtype=torch.bool)
    few[:, 3] = True
    assert function(*PAIRS[0], where=few).isnan().all()


@given(
    st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3), st.integers(-3, 3)), min_size=2, max_size=9)
)
def test_agree_with_the_definitions(triples):
    x, y, g = ([float(v) for v in column] for column in zip(*triples, strict=True))
    rows = cases.row(x), cases.row(y), cases.row(g)
    cases.assert_same(pearson(*rows[:2]), reference.pearson(x, y))
    cases.assert_same(spearman(*rows[:2]), reference.spearman(x, y))
    cases.assert_same(partial_rank_correlation(*rows), reference.partial_rank_correlation(x, y, g), atol=1e-7)


@given(cases.numbers(3))
def test_a_row_follows_itself(values):
    x = cases.row(values)
    for function in (pearson, spearman):
        r = function(x, x)
        assert r.isnan() if not has_spread(x) else r == 1.0
    r = spearman(x, -x)
    assert r.isnan() if not has_spread(x) else r == -1.0


@given(cases.numbers(3))
def test_pearson_ignores_scale_up_to_the_end_of_the_range(values):
    x, y = cases.row(values), torch.arange(float(len(values)))
    cases.assert_same(pearson(x * 2.0**300, y), pearson(x, y))
    cases.assert_same(pearson(x * 2.0**-300, y), pearson(x, y))


def test_pearson_far_from_zero():
    x = torch.arange(100, dtype=torch.float64)
    y = cases.smooth(100)
    noise = y - y.round(decimals=3)  # exact shifts need few digits
    cases.assert_same(pearson(x + 2.0**40, y - noise), pearson(x, y - noise), atol=1e-13)


@pytest.mark.parametrize(
    "constant",
    [[0.1] * 10, [1 / 3] * 7, [0.0] * 5, [1e300] * 4, [0.3, 0.1 + 0.2, 0.3], [5e-324] * 3, [1.0]],
)
def test_constant_rows_have_no_spread(constant):
    x = cases.row(constant)
    y = torch.arange(float(len(constant)))
    assert not has_spread(x)
    for function in (pearson, spearman):
        assert function(x, y).isnan()
        assert function(y, x).isnan()
    assert partial_rank_correlation(x, y, y.square()).isnan()


def test_spread():
    x = cases.row([1.0, 1.0 + 1e-12, 1.0])
    assert has_spread(x)
    assert not has_spread(x, torch.tensor([True, False, True]))
    assert has_spread(cases.row([-1e308, 1e308]))
    assert has_spread(cases.row([1.0, torch.inf]))
    assert not has_spread(cases.row([torch.inf, torch.inf]))
    assert not has_spread(cases.row([1.0, torch.nan, 2.0]))
    assert has_spread(torch.zeros(4, 0)).tolist() == [False] * 4
    assert has_spread(torch.tensor([1, 2])).dtype == torch.bool


def test_nan_stays_in_its_row():
    x = torch.stack([cases.smooth(5), cases.row([1.0, torch.nan, 2.0, 3.0, 4.0])])
    y = cases.smooth(5, seed=2)
    for function in (pearson, spearman):
        assert function(x, y).isnan().tolist() == [False, True]


def check_partial(function):
    x, y, g = cases.smooth(40, 8), cases.tied(40, 8, seed=1), cases.smooth(40, 8, seed=2)
    x, y = x + g, y + g
    rows = zip(x.tolist(), y.tolist(), g.tolist(), strict=True)
    cases.assert_same(function(x, y, g), [reference.partial_rank_correlation(*r) for r in rows])
    # regressing ranks on ranks and correlating what is left is the same thing by another road
    ranks = [scipy.stats.rankdata(v[0].numpy()) for v in (x, y, g)]
    left = [r - np.polyval(np.polyfit(ranks[2], r, 1), ranks[2]) for r in ranks[:2]]
    cases.assert_same(function(x, y, g)[0], np.corrcoef(*left)[0, 1])


def test_partial_rank_correlation_agrees_with_its_definition():
    check_partial(partial_rank_correlation)


@pytest.mark.parametrize(
    "mutant",
    [
        lambda x, y, g: spearman(x, y),
        lambda x, y, g: spearman(x, y) - spearman(x, g) * spearman(y, g),
        lambda x, y, g: partial_rank_correlation(x, g, y),
        lambda x, y, g: partial_rank_correlation(x, -y, g),
    ],
)
def test_wrong_partial_correlations_fail_the_check(mutant):
    with pytest.raises(AssertionError):
        check_partial(mutant)


def test_partial_rank_correlation_when_nothing_is_left():
    level = torch.arange(1.0, 9.0)
    assert partial_rank_correlation(level.exp(), cases.smooth(8), level).isnan()
    assert partial_rank_correlation(cases.smooth(8), -level, level).isnan()
    cases.assert_mask_means_absent(
        partial_rank_correlation, *(cases.smooth(5, 12, seed=i) for i in range(3)), where=cases.mask(5, 12)
    )


def test_partial_rank_correlation_keeps_its_digits_when_little_is_left():
    level = torch.arange(20_000, dtype=torch.float64)
    swapped = level.clone()
    swapped[[100, 101]] = swapped[[101, 100]]
    cases.assert_same(partial_rank_correlation(swapped, swapped**3, level), 1.0)
    cases.assert_same(partial_rank_correlation(swapped, level.flip(0) + level - swapped, level), -1.0)


def test_rows_broadcast_and_lengths_must_agree():
    assert spearman(torch.rand(4, 1, 6), torch.rand(3, 6)).shape == (4, 3)
    with pytest.raises(ShapeError, match=r"x.*\(2, 6\).*y.*\(2, 1\)"):
        pearson(torch.rand(2, 6), torch.rand(2, 1))
    with pytest.raises(ShapeError, match="broadcast"):
        pearson(torch.rand(2, 6), torch.rand(3, 6))


def test_no_graph_is_kept():
    assert not pearson(torch.rand(5, requires_grad=True), torch.rand(5)).requires_grad
