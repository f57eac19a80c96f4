"""Planted features and what is measured against them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.reference.dictionaries import best_matching, firing
from veridical.dictionaries import Superposition, assign, chance_mcc, mcc, truth_scores

WORLD = Superposition(features=48, dimensions=16, active=4.0, groups=4)


def draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_the_matching_is_the_best_of_all() -> None:
    for seed in range(4):
        atoms, features = draw(seed, 5, 4), draw(seed + 9, 5, 4)
        best = best_matching(atoms.double().numpy(), features.double().numpy())
        assert mcc(atoms, features) == pytest.approx(best / 5, abs=1e-9)


def test_chance_is_as_large_as_the_field_found() -> None:
    features = torch.nn.functional.normalize(draw(0, 512, 128), dim=-1)
    assert chance_mcc(512, features, draws=1) == pytest.approx(0.27, abs=0.01)


def test_truth_scores_1_and_random_atoms_0() -> None:
    codes = WORLD.codes(400)
    perfect = truth_scores(WORLD.directions, codes, WORLD.directions, codes > 0)
    assert all(value == pytest.approx(1.0) for value in perfect.values())
    values = [truth_scores(draw(s, 48, 16), codes, WORLD.directions, codes > 0)["mcc"] for s in range(5)]
    assert abs(float(np.mean(values))) < 0.05
    # turned atoms and another order change nothing
    order = torch.randperm(48, generator=torch.Generator().manual_seed(1))
    turned = truth_scores(-WORLD.directions[order], codes[:, order], WORLD.directions, codes > 0)
    assert turned["mcc"] == pytest.approx(1.0)
    assert turned["f1"] == pytest.approx(1.0)


def test_firing_is_counted_row_by_row() -> None:
    codes, fires = draw(1, 30, 6).clamp(min=0), draw(2, 30, 6) > 0.5
    fires[:, 2] = False  # a feature that never fires says nothing
    atoms, features = draw(3, 6, 5), draw(4, 6, 5)
    found = truth_scores(atoms, codes, features, fires, chance=0.1)
    one, other, _ = assign(atoms, features)
    each = [
        firing((codes[:, a] > 0).numpy(), fires[:, f].numpy())
        for a, f in zip(one.tolist(), other.tolist(), strict=True)
        if bool(fires[:, f].any())
    ]
    for name, value in zip(("precision", "recall", "f1"), np.mean(each, 0), strict=True):
        assert found[name] == pytest.approx(value)


def test_uniqueness_and_recovery_by_hand() -> None:
    eye = torch.eye(4)
    atoms = torch.stack([eye[0], eye[0] + 0.1 * eye[1], eye[1], eye[2] + eye[3]])
    codes = torch.ones(2, 4)
    found = truth_scores(atoms, codes, eye, torch.ones(2, 4, dtype=torch.bool), chance=0.0)
    assert found["uniqueness"] == pytest.approx(0.5)  # two atoms share a feature
    assert found["recovered"] == pytest.approx(0.5)  # the last atom lies between two features
    codes[:, 1] = 0  # a dead atom takes nothing
    assert truth_scores(atoms, codes, eye, codes > 0, chance=0.0)["uniqueness"] == 1.0


def test_frequencies_correlation_and_hierarchy_are_as_asked() -> None:
    world = Superposition(features=40, dimensions=10, active=4.0, groups=4, children=0.5)
    codes = world.codes(20000)
    fires = codes > 0
    alone = world.parents < 0
    share = fires.double().mean(0)
    assert torch.allclose(share[alone], world.frequencies[alone], atol=0.015)
    assert float(world.frequencies.sum()) == pytest.approx(4.0, rel=1e-6)
    assert float(world.frequencies.max()) <= 0.5
    for child in (~alone).nonzero()[:, 0].tolist():
        assert not bool((fires[:, child] & ~fires[:, world.parents[child]]).any())
    loose = Superposition(features=40, dimensions=10, active=4.0, groups=4, children=0.0, correlation=0.0)
    assert together(world.codes(4000) > 0) > together(loose.codes(4000) > 0) + 0.02
    assert torch.equal(world.codes(10), world.codes(20)[:10])
    assert not torch.equal(world.codes(10), world.codes(10, draw=1))


def together(fires: torch.Tensor) -> float:
    """The mean absolute correlation of the ten most frequent features."""
    return float((torch.corrcoef(fires[:, :10].double().T) - torch.eye(10)).abs().mean())


def test_the_planted_model_holds_the_features() -> None:
    task = WORLD.task(64)
    assert torch.allclose(task.model.embed(task.inputs), task.inputs @ WORLD.directions, atol=1e-5)
    right = (task.predictions == task.labels).double().mean()
    assert float(right) > 0.4  # of 8 classes
