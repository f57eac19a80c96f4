from __future__ import annotations

import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.functional import cases
from tests.reference import functional_ranking as reference
from veridical.errors import InputError
from veridical.functional import SignedRank, signed_rank


def scipy_test(d, method):
    return scipy.stats.wilcoxon(d.numpy(), zero_method="zsplit", method=method)


def check_test(function):
    for n in (1, 2, 5, 20, 49, 50, 51, 80):  # exact up to 50 where nothing ties
        d = cases.smooth(n, seed=n) + 0.3
        expected = scipy_test(d, "auto")
        got = function(d)
        cases.assert_same(got.statistic, expected.statistic)
        cases.assert_same(got.p, expected.pvalue)
    for n in (2, 6, 13, 14, 30, 60):  # normal with ties and zeros
        d = cases.tied(n, seed=n) + (cases.tied(n, seed=n + 1) > 0)
        expected = scipy_test(d, "asymptotic")
        got = function(d)
        cases.assert_same(got.statistic, expected.statistic)
        cases.assert_same(got.p, expected.pvalue)
        plus, minus = reference.rank_sums(d.tolist())
        cases.assert_same(got.rank_biserial, (plus - minus) / (plus + minus))


def test_agrees_with_scipy():
    check_test(signed_rank)


def normal_always(d):
    result = scipy_test(d, "asymptotic")
    return signed_rank(d)._replace(p=torch.tensor(result.pvalue, dtype=torch.float64))


def with_correction(d):
    result = scipy.stats.wilcoxon(d.numpy(), zero_method="zsplit", method="auto", correction=True)
    return signed_rank(d)._replace(p=torch.tensor(result.pvalue, dtype=torch.float64))


def zeros_dropped(d):
    return signed_rank(d, where=d != 0)


def one_sided(d):
    return signed_rank(d)._replace(p=signed_rank(d).p / 2)


def sign_flipped(d):
    return signed_rank(d)._replace(rank_biserial=-signed_rank(d).rank_biserial)


def untied(d):
    return signed_rank(d + 1e-9 * torch.arange(len(d)))


def permuted_when_tied(d):
    return signed_rank(d, tied_exact_up_to=13)


@pytest.mark.parametrize(
    "mutant",
    [normal_always, with_correction, zeros_dropped, one_sided, sign_flipped, untied, permuted_when_tied],
)
def test_wrong_variants_fail_the_check(mutant):
    with pytest.raises(AssertionError):
        check_test(mutant)


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=7))
def test_sign_changes_agree_with_trying_them_all(differences):
    d = cases.row([float(v) for v in differences])
    cases.assert_same(signed_rank(d, tied_exact_up_to=13).p, reference.sign_change_p(d.tolist()))


@pytest.mark.parametrize("n", [3, 8, 11])
def test_sign_changes_agree_with_scipy_auto(n):
    d = cases.tied(n, seed=n) + 1
    cases.assert_same(signed_rank(d, tied_exact_up_to=13).p, scipy_test(d, "auto").pvalue)


def test_the_exact_table_agrees_with_trying_all_signs():
    for n in range(1, 9):
        d = cases.smooth(n, seed=n)
        cases.assert_same(signed_rank(d).p, reference.sign_change_p(d.tolist()))
        cases.assert_same(signed_rank(d + 0.2).p, signed_rank(d + 0.2, tied_exact_up_to=13).p)


@pytest.mark.parametrize("n", [1, 5, 60])
def test_identical_vectors(n):
    x = cases.smooth(3, n)
    test = signed_rank(x, x)
    assert (test.p == 1).all()
    assert (test.rank_biserial == 0).all()


def test_rows_are_independent_whatever_their_kind():
    rows = torch.stack([cases.smooth(20), cases.tied(20), torch.zeros(20), cases.smooth(20).abs()])
    together = signed_rank(rows)
    assert isinstance(together, SignedRank)
    for i, row in enumerate(rows):
        for got, alone in zip(together, signed_rank(row), strict=True):
            cases.assert_same(got[i], alone)
    assert together.rank_biserial[3] == 1.0


@pytest.mark.parametrize("field", range(3))
@pytest.mark.parametrize("exact", [0, 13])
def test_masked_entries_do_not_exist(field, exact):
    def one_field(x, y, where=None):
        return signed_rank(x, y, where, tied_exact_up_to=exact)[field]

    where = cases.mask(6, 18, keep=0.6)
    cases.assert_mask_means_absent(one_field, cases.smooth(6, 18), cases.smooth(6, 18, seed=1), where=where)
    cases.assert_mask_means_absent(one_field, cases.tied(6, 18), cases.tied(6, 18, seed=1), where=where)
    wide = cases.mask(6, 90, keep=0.5)  # more than 50 entries, fewer that count
    cases.assert_mask_means_absent(one_field, cases.smooth(6, 90), cases.smooth(6, 90, seed=1), where=wide)


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
    with pytest.raises(InputError, match="51"):
        signed_rank(x, tied_exact_up_to=51)
