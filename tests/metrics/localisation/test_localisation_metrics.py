"""The localisation metrics: hand rewrites, peers, ties, empty and full masks, signed maps."""

from pathlib import Path

import numpy as np
import pytest
import torch

import veridical as vd
from tests.reference import metrics as map_scores
from tests.reference.metric_cases import image_task, linear_task, numbers
from veridical.metrics.tie_orders import TIES_DECIDE
from veridical.values.explanation import Explanation

DATA = Path(__file__).parents[2] / "data" / "quantus_maps.npz"
V = 12
MASK = torch.tensor([[1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1]], dtype=torch.bool).repeat(6, 1)
MASK[2] = ~MASK[2]

BY_HAND = {
    "pointing_game": map_scores.pointing,
    "top_k_intersection": lambda e, m: map_scores.top_k(e, m, 1),
    "relevance_mass_accuracy": map_scores.mass,
    "relevance_rank_accuracy": map_scores.rank_accuracy,
    "attribution_localisation": map_scores.mass,
    "localisation_auc": map_scores.auc,
}
ALL = sorted(BY_HAND)


def masked_task(masks: torch.Tensor, columns: int = V, **more: object) -> vd.Task:
    return linear_task(len(masks), columns, masks=masks, **more)


def assert_by_hand(name: str, maps: torch.Tensor, formula) -> None:
    got = vd.score(name, masked_task(MASK), maps).values
    expected = [float(formula(e, m)) for e, m in zip(maps.tolist(), MASK.tolist(), strict=True)]
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ALL)
def test_agrees_with_the_definition_by_hand_ties_included(name: str) -> None:
    maps = numbers("maps", 6, V)
    maps[1] = maps[1].round()
    maps[3, 4:9] = maps[3].max()
    assert_by_hand(name, maps, BY_HAND[name])
    with pytest.raises(AssertionError):
        assert_by_hand(name, maps, lambda e, m: BY_HAND[name](e, [not x for x in m]))


@pytest.mark.parametrize("name", ALL)
def test_a_map_on_the_object_beats_one_off_it_and_nothing_is_asked(name: str) -> None:
    task = masked_task(MASK)
    good = vd.score(name, task, MASK + 0.01 * numbers("noise", 6, V).abs())
    bad = vd.score(name, task, ~MASK + 0.01 * numbers("noise", 6, V).abs())
    assert (good.values > bad.values).all()
    assert good.direction == "higher"
    assert (good.cost.forward, good.cost.backward) == (0, 0)


@pytest.mark.parametrize("name", ALL)
def test_an_empty_mask_is_never_a_hit_and_a_full_one_is_flagged(name: str) -> None:
    masks = MASK.clone()
    masks[0], masks[1] = False, True
    scores = vd.score(name, masked_task(masks), numbers("maps", 6, V))
    assert scores.values[0].isnan()
    assert scores.flags["the object mask is empty"].tolist() == [True] + [False] * 5
    assert scores.flags["the object mask covers every feature"].tolist() == [False, True] + [False] * 4


def test_without_masks_it_says_what_to_give() -> None:
    with pytest.raises(vd.errors.NotApplicableError, match="masks="):
        vd.score("pointing_game", linear_task(), numbers("maps", 6, 5))


def test_mass_accuracy_of_signed_maps_stays_within_one() -> None:
    # the ratio as printed would be (3 - 1) / (3 - 1 - 1.5) = 4
    maps = torch.tensor([[3.0, -1.0, -1.5, 0.0]], dtype=torch.float64)
    task = masked_task(torch.tensor([[True, True, False, False]]), 4)
    assert vd.score("relevance_mass_accuracy", task, maps).values.tolist() == [1.0]
    some = numbers("maps", 6, V)
    values = vd.score("relevance_mass_accuracy", masked_task(MASK), some).values
    assert ((values >= 0) & (values <= 1)).all()


@pytest.mark.parametrize("name", ["relevance_mass_accuracy", "attribution_localisation"])
def test_nothing_positive_is_no_score(name: str) -> None:
    scores = vd.score(name, masked_task(MASK), -numbers("maps", 6, V).abs())
    assert scores.values.isnan().all()
    assert scores.flags["the map is nowhere positive"].all()


@pytest.mark.parametrize("name", ["pointing_game", "top_k_intersection", "relevance_rank_accuracy"])
def test_a_constant_map_ranks_nothing(name: str) -> None:
    scores = vd.score(name, masked_task(MASK), torch.full((6, V), 0.3))
    assert scores.values.isnan().all()
    assert scores.flags["the map has no spread: it ranks nothing"].all()


def test_a_constant_map_is_a_coin_toss_to_the_auc_and_the_weighted_ratio_is_one() -> None:
    maps = torch.full((6, V), 0.3, dtype=torch.float64)
    assert vd.score("localisation_auc", masked_task(MASK), maps).values.tolist() == [0.5] * 6
    weighted = vd.score("attribution_localisation", masked_task(MASK), maps, weighted=True)
    torch.testing.assert_close(weighted.values, torch.ones(6, dtype=torch.float64))


@pytest.mark.parametrize("name", ["pointing_game", "top_k_intersection", "relevance_rank_accuracy"])
def test_ties_are_averaged_or_follow_the_order_that_travels_with_the_map(name: str) -> None:
    mask = torch.zeros(1, V, dtype=torch.bool)
    mask[0, 0] = True
    task = masked_task(mask)
    values = torch.zeros(1, V)
    values[0, [0, 5]] = 1.0
    last = Explanation(values, task.space, task.targets, task.ids)
    order = last.order.clone()
    order[0, [-1, -2]] = order[0, [-2, -1]]
    first = Explanation(values, task.space, task.targets, task.ids, given_order=order)
    settings = {"k": 1} if name == "top_k_intersection" else {}
    for map_, along_it in ((last, 0.0), (first, 1.0)):
        assert vd.score(name, task, map_, ties="stable", **settings).values.item() == along_it
        averaged = vd.score(name, task, map_, **settings)
        assert averaged.values.item() == 0.5
        assert averaged.flags[TIES_DECIDE].all()


def test_k_counts_features_or_shares_them() -> None:
    maps = numbers("maps", 6, V)
    task = masked_task(MASK)
    for k, size in ((3, 3), (0.25, 3), (0.5, 6), (0.01, 1), (500, V)):
        expected = [map_scores.top_k(e, m, size) for e, m in zip(maps.tolist(), MASK.tolist(), strict=True)]
        scores = vd.score("top_k_intersection", task, maps, k=k)
        assert scores.values.tolist() == pytest.approx(expected)
        assert ("k is all features" in scores.flags) == (size == V)
    for wrong in (0, -1, 2.5):
        with pytest.raises(vd.errors.InputError, match="k"):
            vd.score("top_k_intersection", task, maps, k=wrong)


# --- focus ---------------------------------------------------------------------------------------------


def mosaic_masks() -> torch.Tensor:
    masks = torch.zeros(4, 8, 8, dtype=torch.bool)
    masks[:, :4, 4:] = masks[:, 4:, :4] = True
    return masks


def test_focus_is_the_positive_share_on_the_target_quadrants() -> None:
    masks = mosaic_masks()
    task = image_task(masks=masks)
    maps = numbers("maps", 4, 64)
    expected = [
        map_scores.mass(e, m) for e, m in zip(maps.tolist(), masks.reshape(4, -1).tolist(), strict=True)
    ]
    scores = vd.score("focus", task, maps)
    assert scores.values.tolist() == pytest.approx(expected)
    assert not scores.flags
    assert vd.score("focus", task, torch.ones(4, 64)).values.tolist() == [0.5] * 4
    assert vd.score("focus", task, masks.reshape(4, -1).double()).values.tolist() == [1.0] * 4


def test_focus_flags_masks_that_are_no_quadrants() -> None:
    masks = mosaic_masks()
    masks[1, 0, 0] = True
    scores = vd.score("focus", image_task(masks=masks), torch.ones(4, 64))
    assert scores.flags["the mask is not made of mosaic quadrants"].tolist() == [False, True, False, False]


# --- parity --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("who", ["Gradient", "IntegratedGradients"])
def test_parity_with_the_peer_on_real_maps(who: str) -> None:
    data = np.load(DATA, allow_pickle=False)
    maps = torch.tensor(data[f"map/{who}"]).abs()
    masks = torch.tensor(np.unpackbits(data["masks"], axis=1)[:, :784]).bool()
    task = masked_task(masks, 784)
    figures = {
        "relevance_mass_accuracy": ("relevance_mass_accuracy_abs", {}),
        "pointing_game": ("pointing_game_abs", {}),
        "attribution_localisation": ("attribution_localisation_abs", {}),
        "localisation_auc": ("auc_abs", {}),
    }
    if who == "Gradient":  # the others tie, and the peer breaks ties in another order
        figures["relevance_rank_accuracy"] = ("relevance_rank_accuracy_abs", {})
        figures["top_k_intersection"] = ("top_k_intersection_k100_abs", {"k": 100})
    for name, (column, settings) in figures.items():
        expected = torch.tensor(data[f"{who}/{column}"]).double()
        torch.testing.assert_close(vd.score(name, task, maps, **settings).values, expected, rtol=0, atol=1e-5)
