from __future__ import annotations

import pytest
import torch
from hypothesis import given

from tests.functional import cases
from tests.reference import functional_maps as reference
from veridical.errors import InputError
from veridical.functional import average_ranks, round_to_grid

STEPS = {torch.float64: 1e-9, torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 1e-2}


def check_grid(function):
    for dtype, step in STEPS.items():
        for x in (cases.smooth(5, 20).to(dtype), (100 * cases.smooth(5, 20)).to(dtype)):
            rows = [reference.round_to_grid(r, step) for r in x.double().tolist()]
            expected = torch.tensor(rows, dtype=torch.float64)
            got = function(x)
            assert got.dtype == torch.float64
            scale = x.double().abs().amax(-1, keepdim=True)
            assert ((got - expected).abs() <= 1e-13 * scale).all()


def test_agrees_with_the_definition():
    check_grid(round_to_grid)


@pytest.mark.parametrize(
    "mutant",
    [
        lambda x: x.double(),
        lambda x: round_to_grid(x, torch.float32),
        lambda x: (x.double() / STEPS[x.dtype]).round() * STEPS[x.dtype],  # absolute, not relative
        lambda x: round_to_grid(x.flatten(), x.dtype).reshape(x.shape),  # scaled over the batch
        lambda x: (
            (x.double() / x.abs().amax(-1, keepdim=True).double() / STEPS[x.dtype]).floor()
            * x.abs().amax(-1, keepdim=True).double()
            * STEPS[x.dtype]
        ),
    ],
)
def test_wrong_grids_fail_the_check(mutant):
    with pytest.raises(AssertionError):
        check_grid(mutant)


@given(cases.numbers(1))
def test_rounding_twice_is_rounding_once(values):
    once = round_to_grid(cases.row(values))
    assert torch.equal(round_to_grid(once), once)
    assert torch.equal(once.abs().max(), cases.row(values).abs().max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_in_the_last_bits_ties(dtype):
    exact = torch.tensor([0.25, 0.5, 0.5, 1.0, 0.25], dtype=dtype)
    noisy = exact * (1 + 2 * torch.finfo(dtype).eps * torch.tensor([1, -1, 1, 0, -1], dtype=dtype))
    assert not torch.equal(average_ranks(noisy), average_ranks(exact))
    assert torch.equal(average_ranks(round_to_grid(noisy)), average_ranks(exact))


def test_the_precision_of_the_answer_decides():
    x = cases.row([1.0, 0.5, 0.5 + 1e-8])
    assert round_to_grid(x).unique().numel() == 3
    for like in (torch.float32, torch.zeros(1)):
        assert round_to_grid(x, like=like).unique().numel() == 2


def test_rows_without_scale():
    assert torch.equal(round_to_grid(torch.zeros(2, 3)), torch.zeros(2, 3).double())
    assert round_to_grid(torch.zeros(2, 0)).shape == (2, 0)
    assert round_to_grid(torch.tensor([3, 1_000_000_001])).tolist() == [3.0, 1_000_000_001.0]


def test_masked_entries_and_infinities_do_not_set_the_scale():
    where = cases.mask(5, 12)
    cases.assert_mask_means_absent(
        lambda x, where=None: round_to_grid(x, where=where), cases.smooth(5, 12), where=where
    )
    assert torch.equal(round_to_grid(torch.rand(5, 12), where=where).isnan(), ~where)
    x = torch.tensor([torch.inf, 0.5, torch.nan, -torch.inf])
    cases.assert_same(round_to_grid(x), [torch.inf, 0.5, torch.nan, -torch.inf])


def test_unknown_precision_is_named():
    with pytest.raises(InputError, match="float8"):
        round_to_grid(torch.zeros(3), like=torch.float8_e4m3fn)
