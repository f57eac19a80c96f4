"""The inverse of an explanation: eq. 4, an involution on (values, order), valid features only."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import veridical as vd
from tests.reference import qge as reference
from veridical.qge.paths import digest, random_orders, reversed_orders


def explanation(values: torch.Tensor, valid: torch.Tensor | None = None) -> vd.Explanation:
    count = len(values)
    space = vd.Space.tokens(values.shape[1], valid)
    return vd.Explanation(values, space, torch.zeros(count, dtype=torch.int64), torch.arange(count))


# few distinct values, so that most maps are full of ties
FEW = st.sampled_from([-1.0, 0.0, 0.5, 2.0])
MAPS = arrays.arrays(np.float64, st.tuples(st.integers(1, 4), st.integers(1, 8)), elements=FEW)


@given(MAPS, st.integers(0, 5))
def test_inverse_is_an_involution_whatever_the_ties(maps: np.ndarray, seed: int) -> None:
    values = torch.tensor(maps)
    valid = torch.rand(values.shape, generator=torch.Generator().manual_seed(seed)) < 0.7
    valid[:, 0] = True
    for keep in (None, valid):
        e = explanation(values, keep)
        for negated in (False, True):
            back = e.inverted(negated).inverted(negated)
            assert torch.equal(back.values, e.values)
            assert torch.equal(back.order, e.order)
            assert torch.equal(e.inverted(negated).order, e.inverted().order)


@given(MAPS)
def test_inverse_reverses_the_ranking_and_keeps_the_values(maps: np.ndarray) -> None:
    e = explanation(torch.tensor(maps))
    turned = e.inverted()
    assert torch.equal(turned.order, e.order.flip(-1))
    assert torch.equal(turned.values.sort(-1).values, e.values.sort(-1).values)
    along = turned.values.gather(-1, turned.order)
    assert bool((along.diff(dim=-1) >= 0).all())


SPACES = {
    "pixels": vd.Space.pixels((3, 2, 4)),
    "patches": vd.Space.patches((1, 4, 8), 2),
    "columns": vd.Space.columns(8),
    "groups": vd.Space.column_groups([0, 0, 1, 2, 3, 3, 4, 5, 6, 7]),
    "concepts": vd.Space.concepts(8),
}


def test_the_paper_s_example() -> None:
    e = explanation(torch.tensor([[0.1, -0.1, 9.0, 4.0]]))
    assert torch.equal(e.inverted().values, torch.tensor([[4.0, 9.0, -0.1, 0.1]]))


@given(arrays.arrays(np.float64, 7, elements=st.floats(-5, 5, width=32), unique=True))
def test_without_ties_it_is_the_printed_formula(values: np.ndarray) -> None:
    e = explanation(torch.tensor(values)[None])
    assert np.array_equal(e.inverted().values[0].numpy(), reference.inverse(values))


def test_invalid_features_stay_in_place() -> None:
    valid = torch.tensor([[True, True, True, False]])
    e = explanation(torch.tensor([[3.0, 1.0, 2.0, 0.0]]), valid)
    assert e.inverted().values.tolist() == [[1.0, 3.0, 2.0, 0.0]]
    assert torch.equal(reversed_orders(e.order, valid), e.inverted().order)


def test_random_rankings_carry_the_values_on_valid_features_only() -> None:
    valid = torch.tensor([[True, True, True, False, True], [True] * 5])
    e = explanation(torch.tensor([[3.0, 1.0, 2.0, 0.0, 7.0], [1.0, 2.0, 3.0, 4.0, 5.0]]), valid)
    order = random_orders(vd.core.Key(0), e.draw_ids, 3, 5, valid)
    moved = e.along(order)
    assert float(moved.values[0, 3]) == 0.0
    assert torch.equal(moved.values.sort(-1).values, e.values.sort(-1).values)
    assert bool((moved.values.gather(-1, order)[1].diff() >= 0).all())


def test_digest_tells_rankings_apart_and_ignores_padding() -> None:
    values = torch.tensor([[3.0, 1.0, 2.0], [1.0, 3.0, 2.0], [30.0, 10.0, 20.0]])
    plain = digest(explanation(values))
    assert plain[0] == plain[2] != plain[1]
    padded = torch.cat([values, torch.zeros(3, 2)], 1)
    valid = torch.tensor([[True, True, True, False, False]]).expand(3, -1)
    assert torch.equal(digest(explanation(padded, valid)), plain)
