"""The quick sort is torch's stable one, to the last tie."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from veridical.functional._sorting import sorted_singles, stable_sort

NUMBERS = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1.0 + 2**-52, 1e-300, -1e-300]),
    st.floats(allow_nan=True, width=64),
)

SINGLES = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1.0 + 2**-23, 2.0**-130]),
    st.floats(allow_nan=True, width=32),
)


def stable_argsort(rows):
    ordered, order = stable_sort(rows.numpy())
    assert np.array_equal(ordered, np.sort(rows.numpy(), -1), equal_nan=True)
    return torch.tensor(order)


def is_stable(rows, order):
    return torch.equal(order, torch.argsort(rows, dim=-1, stable=True))


@given(arrays.arrays(np.float64, st.tuples(st.integers(1, 3), st.integers(2, 40)), elements=NUMBERS))
def test_any_numbers(values):
    rows = torch.tensor(values)
    assert is_stable(rows, stable_argsort(rows))


@pytest.mark.parametrize("digits", [1, 4, 14])
def test_long_rows_with_few_and_many_ties(digits):
    rows = torch.randn(2, 30000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows = rows.round(decimals=digits)
    assert is_stable(rows, stable_argsort(rows))
    # values that differ in their last bits only: the places have taken those
    close = 1 + torch.arange(30000, 0, -1, dtype=torch.float64) * 2**-52
    assert is_stable(close, stable_argsort(close))
    assert not is_stable(rows, stable_argsort(rows).flip(-1))


@given(arrays.arrays(np.float32, st.tuples(st.integers(1, 3), st.integers(1, 40)), elements=SINGLES))
def test_single_precision_in_one_go(values):
    ordered, order = sorted_singles(values)
    rows = torch.tensor(values)
    assert is_stable(rows, torch.tensor(order))
    # equal integers for equal numbers, and for no others; NaN may do as it likes
    numbers = np.sort(values, -1)
    known = ~np.isnan(numbers[:, 1:])
    assert np.array_equal(
        (ordered[:, 1:] == ordered[:, :-1])[known], (numbers[:, 1:] == numbers[:, :-1])[known]
    )
