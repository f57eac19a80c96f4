from __future__ import annotations

import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.functional import cases
from tests.reference import functional_ranking as reference
from veridical.functional import kendall_tau_b
from veridical.functional.kendall import _inversions, _pair_counts


def check_tau(function):
    for n in (2, 5, 33, 300):
        for seed in range(3):
            kinds = (
                cases.smooth(n, seed=seed),
                cases.tied(n, seed=seed + 9),
                cases.tied(n, seed=seed, levels=2),
            )
            for x in kinds:
                for y in (x + cases.smooth(n, seed=7), *(k.roll(1) for k in kinds)):
                    cases.assert_same(function(x, y), scipy.stats.kendalltau(x.numpy(), y.numpy()).statistic)


def test_agrees_with_scipy():
    check_tau(kendall_tau_b)


@pytest.mark.parametrize(
    "mutant",
    [
        lambda x, y: -kendall_tau_b(x, y),
        lambda x, y: torch.tensor(scipy.stats.kendalltau(x, y, variant="c").statistic).double(),
        lambda x, y: torch.tensor(scipy.stats.spearmanr(x, y).statistic).double(),
        # ties broken by the order of the row
        lambda x, y: kendall_tau_b(x.argsort(stable=True).argsort(), y.argsort(stable=True).argsort()),
    ],
)
@pytest.mark.filterwarnings("ignore::scipy.stats.ConstantInputWarning")
def test_wrong_formulas_fail_the_check(mutant):
    with pytest.raises(AssertionError):
        check_tau(mutant)


@given(st.lists(st.tuples(st.integers(-2, 2), st.integers(-2, 2)), min_size=1, max_size=12))
def test_agrees_with_the_definition(pairs):
    x, y = ([float(v) for v in column] for column in zip(*pairs, strict=True))
    cases.assert_same(kendall_tau_b(cases.row(x), cases.row(y)), reference.kendall_tau_b(x, y))


@pytest.mark.parametrize("n", [1, 2, 127, 128, 129, 255, 256, 257, 640, 1025])
def test_inversions_around_the_lengths_where_blocks_change(n):
    rows = torch.stack([torch.randperm(n, generator=torch.Generator().manual_seed(i)) for i in range(3)])
    rows = torch.cat([rows, torch.arange(n)[None], torch.arange(n).flip(0)[None]])
    place = torch.arange(n)
    before = place.unsqueeze(-1) < place
    expected = ((rows.unsqueeze(-1) > rows.unsqueeze(-2)) & before).sum((-1, -2))
    for whole in (rows, rows.int()):
        assert torch.equal(_inversions(whole), expected)


def every_pair(x, y):
    """Pairs tied in x, in y, in both, and ordered differently, by looking at each pair."""
    above = torch.ones(x.shape[-1], x.shape[-1]).triu(1).bool()
    dx, dy = (t.unsqueeze(-1) - t.unsqueeze(-2) for t in (x, y))
    kinds = (dx == 0, dy == 0, (dx == 0) & (dy == 0), dx * dy < 0)
    return [(kind & above).sum((-1, -2)) for kind in kinds]


@pytest.mark.parametrize("n", [2, 3, 40, 129, 300])
def test_pairs_are_counted_as_one_by_one(n):
    kinds = [cases.smooth(3, n), cases.tied(3, n), cases.tied(3, n, levels=2)]
    kinds += [kind.sort(-1).values for kind in kinds]
    absent = ~cases.mask(3, n)
    for x in kinds:
        for y in (k.roll(1, 0) for k in kinds):
            for pair in ((x, y), (x.masked_fill(absent, torch.nan), y.masked_fill(absent, torch.nan))):
                counted = zip(_pair_counts(*pair), every_pair(*pair), strict=True)
                assert all(torch.equal(a, b) for a, b in counted)


def test_inversions_of_a_row_longer_than_a_piece():
    n = 300_001
    assert _inversions(torch.arange(n).flip(0)).item() == n * (n - 1) // 2
    x, y = cases.smooth(n), cases.tied(n, levels=1000)
    cases.assert_same(kendall_tau_b(x, y), scipy.stats.kendalltau(x.numpy(), y.numpy()).statistic)
    cases.assert_same(kendall_tau_b(y, y + x), scipy.stats.kendalltau(y.numpy(), (y + x).numpy()).statistic)


def test_closed_forms():
    x = torch.arange(1000.0)
    assert kendall_tau_b(x, x.double() ** 3) == 1.0
    assert kendall_tau_b(x, -x) == -1.0
    one_swap = x.clone()
    one_swap[[3, 4]] = one_swap[[4, 3]]
    cases.assert_same(kendall_tau_b(x, one_swap), 1 - 4 / (1000 * 999))


def test_masked_entries_do_not_exist():
    for x, y in ((cases.tied(7, 30), cases.tied(7, 30, seed=5)), (cases.smooth(7, 300), cases.tied(7, 300))):
        cases.assert_mask_means_absent(kendall_tau_b, x, y, where=cases.mask(*x.shape))


def test_valid_infinities_do_not_tie_with_masked_entries():
    x = torch.tensor([[1.0, torch.inf, 0.0, torch.inf, 2.0]])
    y = torch.tensor([[torch.inf, 3.0, 0.0, torch.inf, 1.0]])
    where = torch.tensor([[True, True, True, False, True]])
    expected = kendall_tau_b(torch.tensor([1.0, 9.0, 0.0, 2.0]), torch.tensor([9.0, 3.0, 0.0, 1.0]))
    cases.assert_same(kendall_tau_b(x, y, where)[0], expected)


def test_without_spread():
    x = torch.arange(5.0)
    assert kendall_tau_b(x, cases.row([0.1] * 5)).isnan()
    assert kendall_tau_b(x[:1], x[:1]).isnan()
    assert kendall_tau_b(x, x, x < 1).isnan()
    assert kendall_tau_b(x, cases.row([1.0, torch.nan, 2.0, 3.0, 4.0])).isnan()
    assert kendall_tau_b(torch.zeros(3, 0), torch.zeros(3, 0)).isnan().all()
    assert kendall_tau_b(torch.zeros(0, 5), torch.zeros(0, 5)).shape == (0,)


def test_rows_are_independent():
    x, y = cases.tied(3, 4, 200), cases.tied(3, 4, 200, seed=1)
    together = kendall_tau_b(x, y)
    for i in range(3):
        for j in range(4):
            assert together[i, j] == kendall_tau_b(x[i, j], y[i, j])
