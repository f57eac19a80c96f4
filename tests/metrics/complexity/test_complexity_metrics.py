"""Sparseness, complexity and effective complexity: closed forms, hand rewrites, peers, invariances."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import veridical as vd
from tests.reference import metrics as map_scores
from tests.reference.metric_cases import linear_task, numbers

BY_HAND = {
    "sparseness": map_scores.gini,
    "complexity": map_scores.entropy,
    "effective_complexity": lambda e: map_scores.effective(e, 1e-5),
}
DATA = Path(__file__).parents[2] / "data" / "quantus_maps.npz"


def flat_task(maps: torch.Tensor, **more: object) -> vd.Task:
    return linear_task(len(maps), maps.shape[1], **more)


def assert_by_hand(name: str, maps: torch.Tensor, formula) -> None:
    got = vd.score(name, flat_task(maps), maps).values
    expected = torch.tensor([float(formula(row.tolist())) for row in maps], dtype=torch.float64)
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", BY_HAND)
def test_agrees_with_the_formula_by_hand(name: str) -> None:
    maps = numbers("maps", 7, 12)
    maps[1, ::2] = 0.0
    assert_by_hand(name, maps, BY_HAND[name])


MUTANTS = {
    "sparseness": lambda e: map_scores.gini(e) * len(e) / (len(e) - 1),  # divided by (D - 1) as printed
    "complexity": lambda e: -map_scores.entropy(e),
    "effective_complexity": lambda e: sum(v > 1e-5 for v in e),  # signs counted
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_formula_is_noticed(name: str) -> None:
    with pytest.raises(AssertionError):
        assert_by_hand(name, numbers("maps", 7, 12), MUTANTS[name])


def test_closed_forms_of_even_and_single_feature_maps() -> None:
    maps = torch.zeros(2, 8, dtype=torch.float64)
    maps[0] = -2.5
    maps[1, 3] = 4.0
    task = flat_task(maps)
    assert vd.score("sparseness", task, maps).values.tolist() == [0.0, 7 / 8]
    assert vd.score("complexity", task, maps).values.tolist() == pytest.approx([math.log(8), 0.0])
    assert vd.score("effective_complexity", task, maps).values.tolist() == [8.0, 1.0]


@pytest.mark.parametrize("name", BY_HAND)
def test_a_map_of_zeros_has_no_score(name: str) -> None:
    maps = torch.zeros(2, 5)
    maps[1, 0] = 1.0
    scores = vd.score(name, flat_task(maps), maps)
    assert scores.values.isnan().tolist() == [True, False]
    assert scores.flags["the map is all zeros"].tolist() == [True, False]


@pytest.mark.parametrize("name", BY_HAND)
def test_neither_permutation_nor_scale_nor_sign_matters_and_nothing_is_asked(name: str) -> None:
    maps = numbers("maps", 5, 9)
    task = flat_task(maps)
    scores = vd.score(name, task, maps)
    for other in (maps.flip(-1), -maps, 1e-7 * maps):
        torch.testing.assert_close(vd.score(name, task, other).values, scores.values)
    assert (scores.cost.forward, scores.cost.backward) == (0, 0)


def test_effective_complexity_without_normalising_reads_the_scale() -> None:
    maps = torch.tensor([[1e-6, 1.0, 2e-5]], dtype=torch.float64)
    task = flat_task(maps)
    assert vd.score("effective_complexity", task, maps, normalise=False).values.tolist() == [2.0]
    assert vd.score("effective_complexity", task, maps * 1e-6, normalise=False).values.tolist() == [0.0]
    assert vd.score("effective_complexity", task, maps * 1e-6).values.tolist() == [2.0]


@pytest.mark.parametrize("who", ["Gradient", "IntegratedGradients"])
def test_parity_with_the_peer_on_real_maps(who: str) -> None:
    data = np.load(DATA, allow_pickle=False)
    maps = torch.tensor(data[f"map/{who}"])
    task = flat_task(maps)
    for name, figures, settings in (
        ("sparseness", "sparseness", {}),
        ("complexity", "complexity", {}),
        ("effective_complexity", "effective_complexity_eps1e-5", {"normalise": False}),
    ):
        expected = torch.tensor(data[f"{who}/{figures}"], dtype=torch.float64)
        got = vd.score(name, task, maps, **settings).values
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)
