"""Explanations: a ranking that travels with the map, an exact inverse, and a file that gives all back."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import veridical as vd
from tests.reference.small_models import mlp
from veridical.core.space import Space
from veridical.errors import FormatError, InputError, ShapeError


def explanation(values: list[list[float]], valid: list[list[bool]] | None = None) -> vd.Explanation:
    tensor = torch.tensor(values)
    count = tensor.shape[1]
    space = Space.tokens(count, None if valid is None else torch.tensor(valid))
    return vd.Explanation(
        tensor, space, torch.zeros(len(tensor), dtype=torch.int64), torch.arange(len(tensor))
    )


def test_order_is_the_stable_argsort() -> None:
    e = explanation([[1.0, 1.0, 2.0, 0.0]])
    assert e.order.tolist() == [[3, 0, 1, 2]]
    assert e.ranks.tolist() == [[1, 2, 3, 0]]
    assert e.descending_ranks.tolist() == [[2, 1, 0, 3]]


def test_valid_features_come_first_and_the_others_last() -> None:
    e = explanation([[5.0, 1.0, 9.0, 3.0]], [[True, True, False, True]])
    assert e.order.tolist() == [[1, 3, 0, 2]]
    assert e.ranks.tolist() == [[2, 0, 3, 1]]
    assert e.descending_ranks.tolist() == [[0, 2, 3, 1]]


# --- the inverse (SPEC section 2) -------------------------------------------------------------------------


def test_the_papers_example_on_ties() -> None:
    e = explanation([[1.0, 1.0, 2.0]])
    once = e.inverted()
    assert once.values.tolist() == [[2.0, 1.0, 1.0]]
    assert once.inverted().values.tolist() == [[1.0, 1.0, 2.0]]
    # on values alone no tie rule can work: the inverse of [2, 1, 1] is then [1, 2, 1]
    assert e.with_values(once.values).inverted().values.tolist() == [[1.0, 2.0, 1.0]]


@given(st.data())
def test_the_inverse_is_an_exact_involution(data: st.DataObject) -> None:
    rows, count = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 8))
    number = st.sampled_from([-1.0, -0.5, 0.0, 0.0, 1.0, 3.0])
    values = [data.draw(st.lists(number, min_size=count, max_size=count)) for _ in range(rows)]
    valid = [
        [True, *data.draw(st.lists(st.booleans(), min_size=count - 1, max_size=count - 1))]
        for _ in range(rows)
    ]
    e = explanation(values, valid if data.draw(st.booleans()) else None)
    once = e.inverted()
    back = once.inverted()
    assert torch.equal(back.values, e.values)
    assert torch.equal(back.order, e.order)
    kept = torch.ones_like(e.values, dtype=torch.bool) if e.valid is None else e.valid
    assert torch.equal(once.values[~kept], e.values[~kept])
    for n in range(rows):
        assert sorted(once.values[n][kept[n]].tolist()) == sorted(e.values[n][kept[n]].tolist())
    total = kept.sum(-1, keepdim=True) - 1
    assert torch.equal(once.ranks[kept], (total - e.ranks)[kept])
    assert torch.equal(once.descending_ranks[kept], e.ranks[kept])
    # the order it carries sorts the values it carries
    along = once.values.gather(-1, once.order)
    for n in range(rows):
        assert bool((along[n, : int(kept[n].sum())].diff() >= 0).all())


# --- normalising ------------------------------------------------------------------------------------------


def test_normalised_divides_by_the_root_mean_square_and_keeps_the_order() -> None:
    e = explanation([[3.0, -4.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]).inverted()
    scaled = e.normalised()
    torch.testing.assert_close(scaled.values[0].square().mean(), torch.tensor(1.0))
    assert torch.equal(scaled.values[0].sign(), e.values[0].sign())
    assert bool((scaled.values[1] == 0).all())
    assert torch.equal(scaled.order, e.order)


def test_normalising_uses_valid_features_only() -> None:
    e = explanation([[3.0, 4.0, 99.0]], [[True, True, False]]).normalised()
    torch.testing.assert_close(e.values, torch.tensor([[3.0, 4.0, 0.0]]) / 12.5**0.5)


# --- what a map may hold ----------------------------------------------------------------------------------


def test_a_map_that_is_partly_nan_is_refused() -> None:
    for bad in (torch.nan, torch.inf, -torch.inf):
        with pytest.raises(InputError, match=r"'given' is NaN or infinite in samples \[1\]"):
            explanation([[1.0, 2.0], [1.0, bad]])
    with pytest.raises(InputError, match="NaN or infinite"):
        explanation([[torch.inf, torch.inf]])


def test_nan_throughout_says_that_a_sample_could_not_be_explained() -> None:
    e = explanation([[1.0, 2.0], [torch.nan, torch.nan]])
    assert e.missing.tolist() == [False, True]


@pytest.mark.parametrize("padding", [0.0, torch.nan])
def test_padding_does_not_count_when_a_sample_is_missing(padding: float) -> None:
    e = explanation([[torch.nan, torch.nan, padding], [1.0, 2.0, padding]], [[True, True, False]] * 2)
    assert e.missing.tolist() == [True, False]
    assert sorted(e.order[0, :2].tolist()) == [0, 1]


def test_metrics_give_nan_and_a_flag_to_missing_samples() -> None:
    task = vd.Task(
        mlp(),
        torch.randn(3, 4),
        space=Space("token", (4,), 4, torch.arange(4), valid=torch.tensor([[1, 1, 1, 0]] * 3)),
    )
    maps = torch.rand(3, 4)
    maps[1, :3] = torch.nan
    for metric in ("pixel_flipping", "sparseness"):
        scores = vd.score(metric, task, maps)
        assert scores.values.isnan().tolist() == [False, True, False]
        assert scores.flagged == {"no explanation": 1}


def test_shapes_are_checked() -> None:
    with pytest.raises(ShapeError, match=r"shape \(1, 3\), expected \(1, 4\): 1 samples x 4 column features"):
        vd.Explanation(torch.ones(1, 3), Space.columns(4), torch.tensor([0]), torch.tensor([0]))


# --- the rest ---------------------------------------------------------------------------------------------


def test_take_follows_a_subset() -> None:
    e = explanation(
        [[1.0, 2.0], [4.0, 3.0], [5.0, 6.0]], [[True, True], [True, False], [True, True]]
    ).inverted()
    part = e.take(torch.tensor([1, 2]))
    assert part.ids.tolist() == [1, 2]
    assert torch.equal(part.values, e.values[1:])
    assert torch.equal(part.order, e.order[1:])
    assert torch.equal(part.valid, e.valid[1:])
    assert e.to("cpu") is e


def test_maps_lie_over_the_inputs_and_top_names_features() -> None:
    space = Space.pixels((3, 2, 2))
    e = vd.Explanation(torch.tensor([[0.0, 1.0, 3.0, 2.0]]), space, torch.tensor([0]), torch.tensor([0]))
    assert e.maps().tolist() == [[[[0.0, 1.0], [3.0, 2.0]]]]
    assert e.top(count=2) == [("pixel (1, 0)", 3.0), ("pixel (1, 1)", 2.0)]
    padded = explanation([[1.0, 2.0, 9.0]], [[True, True, False]])
    assert padded.top() == [("token 1", 2.0), ("token 0", 1.0)]


SPACES = [
    Space.columns(4, ["a", "b", "c", "d"]),
    Space.tokens(4, torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]]), [["a", "b", "", ""], ["c", "d", "e", "f"]]),
    Space.superpixels((2, 2, 2), torch.tensor([[[0, 1], [2, 3]], [[3, -1], [0, 0]]])),
]


@pytest.mark.parametrize("space", SPACES, ids=lambda s: s.kind)
def test_save_and_load_give_everything_back(space: Space, tmp_path: Path) -> None:
    values = torch.tensor([[0.0, 1.0, 1.0, 0.5], [2.0, -1.0, 0.25, 0.0]], dtype=torch.float64)
    e = vd.Explanation(
        values, space, torch.tensor([2, 0]), torch.tensor([7, -(2**60)]), "mine", cost=vd.models.Cost(3, 4),
        provenance={"seed": 1, "explainer": {"name": "mine", "steps": 3}},
    ).inverted()  # fmt: skip
    loaded = vd.Explanation.load(e.save(tmp_path / "deep" / "e.safetensors"))
    for field in ("values", "order", "targets", "ids"):
        assert torch.equal(getattr(loaded, field), getattr(e, field))
        assert getattr(loaded, field).dtype == getattr(e, field).dtype
    assert torch.equal(loaded.space.labels, space.labels)
    assert (loaded.space.kind, loaded.space.names, loaded.space.per_sample) == (
        space.kind, space.names, space.per_sample,
    )  # fmt: skip
    assert (loaded.valid is None) == (e.valid is None)
    assert loaded.valid is None or torch.equal(loaded.valid, e.valid)
    assert (loaded.explainer, loaded.cost, loaded.provenance) == (e.explainer, e.cost, e.provenance)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    scores = vd.Scores(torch.tensor([1.0]), vd.values.Direction.HIGHER, "m", torch.tensor([0]))
    path = scores.save(tmp_path / "s.safetensors")
    with pytest.raises(FormatError, match="holds a scores, expected a explanation"):
        vd.Explanation.load(path)


def test_an_order_that_belongs_to_other_values_is_refused() -> None:
    task = vd.Task(torch.nn.Linear(4, 2), torch.randn(3, 4))
    made = vd.explain("gradient", task)
    with pytest.raises(InputError, match="does not sort the values"):
        replace(made.take(slice(0, 3)), values=-made.values)
    for turned in (made.with_values(-made.values), replace(made, values=-made.values)):
        assert bool((turned.values.gather(1, turned.order).diff() >= 0).all())


@pytest.mark.parametrize(
    "order",
    [
        torch.zeros(2, 3, dtype=torch.int64),  # sorts anything, since one value is above no other
        torch.zeros(2, 3),
        torch.arange(3),
        torch.full((2, 3), 3),
        torch.tensor([[-3, -2, -1]] * 2),
        [0, 1, 2],
    ],
)
def test_an_order_names_every_feature_once(order: object) -> None:
    task = vd.Task(nn.Linear(3, 2), torch.rand(2, 3))
    values = torch.tensor([[1.0, 2.0, 3.0]] * 2)
    with pytest.raises(vd.errors.InputError, match="`order`"):
        vd.Explanation(values, task.space, task.targets, task.ids, given_order=order)


def test_values_written_to_after_they_were_ranked_are_noticed() -> None:
    task = vd.Task(nn.Linear(3, 2), torch.rand(2, 3))
    found = vd.explain("gradient", task)
    before = vd.score("pixel_flipping", task, found).values
    again = pickle.loads(pickle.dumps(found))
    torch.testing.assert_close(vd.score("pixel_flipping", task, again).values, before)
    found.values.neg_()
    with pytest.raises(vd.errors.InputError, match="written to since"):
        vd.score("pixel_flipping", task, found)
    turned = found.with_values(found.values)
    torch.testing.assert_close(
        vd.score("pixel_flipping", task, turned).values,
        vd.score("pixel_flipping", task, found.values.clone()).values,
    )
