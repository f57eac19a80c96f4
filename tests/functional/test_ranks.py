from __future__ import annotations

import pytest
import scipy.stats
import torch
from hypothesis import given

from tests.functional import cases
from tests.reference import functional_ranking as reference
from veridical.errors import InputError, ShapeError
from veridical.functional import average_ranks, positions


def check_ranks(function):
    for x in (cases.smooth(6, 23), cases.tied(6, 23), cases.tied(2, 3, 9)):
        cases.assert_same(function(x), scipy.stats.rankdata(x.numpy(), axis=-1))


def test_agrees_with_scipy():
    check_ranks(average_ranks)


@pytest.mark.parametrize("method", ["min", "max", "dense", "ordinal"])
def test_other_rules_for_ties_fail_the_check(method):
    with pytest.raises(AssertionError):
        check_ranks(lambda x: torch.as_tensor(scipy.stats.rankdata(x.numpy(), method, axis=-1)).double())


def test_descending_ranks_fail_the_check():
    with pytest.raises(AssertionError):
        check_ranks(lambda x: average_ranks(-x))


@given(cases.numbers(0))
def test_agrees_with_the_definition(values):
    cases.assert_same(average_ranks(cases.row(values)), reference.average_ranks(values))


def test_masked_entries_do_not_exist():
    where = cases.mask(8, 15)
    cases.assert_mask_means_absent(average_ranks, cases.tied(8, 15), where=where)
    assert torch.equal(average_ranks(cases.tied(8, 15), where).isnan(), ~where)


def test_infinities_rank_before_masked_entries():
    x = torch.tensor([torch.inf, 1.0, torch.inf, -torch.inf])
    cases.assert_same(average_ranks(x), [3.5, 2.0, 3.5, 1.0])
    masked = average_ranks(x, torch.tensor([False, True, True, True]))
    cases.assert_same(masked, [torch.nan, 2.0, 3.0, 1.0])


def test_a_nan_makes_its_row_nan_and_no_other():
    x = torch.tensor([[1.0, torch.nan, 3.0], [1.0, 2.0, 3.0]])
    cases.assert_same(average_ranks(x), [[torch.nan] * 3, [1.0, 2.0, 3.0]])


def test_positions_invert_any_permutation():
    order = torch.stack([torch.randperm(50, generator=torch.Generator().manual_seed(i)) for i in range(7)])
    assert torch.equal(positions(order).gather(-1, order), torch.arange(50).expand(7, -1))
    assert torch.equal(positions(positions(order)), order)
    assert positions(order.int()).dtype == torch.long


def test_input_is_left_alone_and_half_precision_is_taken():
    x = cases.tied(3, 9).half()
    before = x.clone()
    cases.assert_same(average_ranks(x), average_ranks(x.double()))
    assert torch.equal(x, before)


def test_mistakes_are_named():
    with pytest.raises(ShapeError, match=r"\(3, 4\)"):
        average_ranks(torch.zeros(5, 5), torch.ones(3, 4, dtype=torch.bool))
    with pytest.raises(ShapeError, match="last dimension"):
        average_ranks(torch.tensor(1.0))
    with pytest.raises(InputError, match="bool"):
        average_ranks(torch.zeros(3), torch.ones(3))
    with pytest.raises(InputError, match="list"):
        average_ranks([1.0, 2.0])
    with pytest.raises(InputError, match="complex"):
        average_ranks(torch.zeros(3, dtype=torch.complex64))
