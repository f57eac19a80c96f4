"""What every function of the package promises: purity, any batch, silence, types."""

from __future__ import annotations

import warnings

import pytest
import torch

import veridical.functional as functional
from tests.functional import cases

ONE_ROW = [
    "average_ranks",
    "centred_ranks",
    "has_spread",
    "area_under_curve",
    "rms_normalise",
    "gini",
    "entropy",
    "histogram_entropy",
    "signed_rank",
]
WHOLE = ["holm", "bootstrap_interval", "round_to_grid"]  # of one row, without a mask
TWO_ROWS = ["pearson", "spearman", "kendall_tau_b", "euclidean", "cosine", "cosine_distance", "signed_rank"]
SPECIAL = ["positions", "partial_rank_correlation", "ssim", "Interval", "SignedRank"]
# of units in [0, 1], or of methods against each other: test_betting, test_wins and test_leading_group
VERDICT = ["betting_wealth", "betting_p", "win_units", "leading_group", "mean_units"]
VERDICT += ["Settled", "settle", "confidence_sequence", "units_to_settle"]
CALLS = [(name, 1) for name in ONE_ROW] + [(name, 2) for name in TWO_ROWS]
ALL = CALLS + [(name, 1) for name in WHOLE]


def outputs(result):
    return result if isinstance(result, tuple) else (result,)


def test_every_function_is_under_contract():
    assert set(functional.__all__) == {*ONE_ROW, *TWO_ROWS, *WHOLE, *SPECIAL, *VERDICT}


@pytest.mark.parametrize(("name", "rows"), ALL)
def test_inputs_stay_and_nothing_is_said(name, rows):
    function = getattr(functional, name)
    kinds = [
        cases.smooth(3, 2, 8),
        cases.tied(3, 2, 8),
        torch.zeros(3, 2, 8),
        torch.full((3, 2, 8), torch.nan),
        torch.full((3, 2, 8), torch.inf),
        cases.tied(3, 2, 8).int(),
        cases.smooth(3, 2, 8).bfloat16(),
        cases.smooth(2, 8).expand(3, 2, 8),
        cases.smooth(3, 8, 2).mT,
        cases.smooth(3, 2, 1),
        cases.smooth(0, 2, 8),
        cases.smooth(3, 2, 0),
    ]
    for x in kinds:
        given = [x, x.flip(-1)][:rows]
        before = [t.clone() for t in given]
        where = cases.mask(x.shape[-1])
        mask_before = where.clone()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            plain = outputs(function(*given))
            masked = () if name in WHOLE else outputs(function(*given, where=where))
        for part in (*plain, *masked):
            assert part.shape in (x.shape, x.shape[:-1])
            assert part.dtype == (torch.bool if name == "has_spread" else torch.float64)
        for now, then in zip(given, before, strict=True):
            assert torch.equal(now.nan_to_num(), then.nan_to_num())
        assert torch.equal(where, mask_before)


@pytest.mark.parametrize(("name", "rows"), ALL)
def test_a_row_scores_the_same_in_any_batch(name, rows):
    function = getattr(functional, name)
    given = [cases.tied(65, 9), cases.smooth(65, 9)][:rows]
    whole = outputs(function(*given))
    for chunk in (1, 7, 64):
        parts = [outputs(function(*(x[i : i + chunk] for x in given))) for i in range(0, 65, chunk)]
        for got, pieces in zip(whole, zip(*parts, strict=True), strict=True):
            torch.testing.assert_close(got, torch.cat(pieces), atol=1e-12, rtol=1e-12, equal_nan=True)


@pytest.mark.parametrize(("name", "rows"), CALLS)
@pytest.mark.parametrize(
    "kind", ["smooth", "tied", "constant", "zero", "tiny", "far", "gaps", "strided", "long"]
)
def test_a_mask_of_everything_is_no_mask(name, rows, kind):
    function = getattr(functional, name)
    x = {
        "smooth": cases.smooth(5, 12),
        "tied": cases.tied(5, 12),
        "constant": torch.full((5, 12), 0.1),
        "zero": torch.zeros(5, 12),
        "tiny": cases.smooth(5, 12).double() * 1e-200,
        "far": cases.smooth(5, 12).double() + 1e7,
        "gaps": cases.smooth(5, 12),
        "strided": cases.smooth(12, 5).T,
        "long": cases.smooth(20, 500),
    }[kind]
    if kind == "gaps":
        x[0, 3], x[1, 0], x[2, -1] = torch.nan, torch.inf, -torch.inf
    given = [x, x.flip(-1)][:rows]
    plain, masked = function(*given), function(*given, where=torch.ones(x.shape, dtype=torch.bool))
    for a, b in zip(outputs(plain), outputs(masked), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-14, atol=0.0, equal_nan=True)


@pytest.mark.parametrize(("name", "rows"), CALLS)
@pytest.mark.parametrize("kind", [cases.smooth, cases.tied])
@pytest.mark.parametrize("length", [15, 90])
def test_masked_entries_do_not_exist(name, rows, kind, length):
    function = getattr(functional, name)
    x = [kind(6, length), kind(6, length, seed=5)][:rows]
    for part in range(len(outputs(function(*x)))):

        def one_part(*x, where=None, part=part):
            return outputs(function(*x, where=where))[part]

        if name != "has_spread":
            cases.assert_mask_means_absent(one_part, *x, where=cases.mask(6, length, keep=0.6))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("name", "rows"), CALLS)
def test_a_gpu_gives_the_same(name, rows):
    function = getattr(functional, name)
    for given in (
        [cases.tied(6, 300), cases.smooth(6, 300)][:rows],
        [cases.smooth(6, 9), cases.tied(6, 9)][:rows],
    ):
        where = cases.mask(*given[0].shape)
        here = outputs(function(*given, where=where))
        there = outputs(function(*(x.cuda() for x in given), where=where.cuda()))
        for a, b in zip(here, there, strict=True):
            assert b.is_cuda
            torch.testing.assert_close(a, b.cpu(), atol=1e-12, rtol=1e-10, equal_nan=True)
