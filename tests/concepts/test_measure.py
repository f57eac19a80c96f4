"""SURF's measure: closed forms, the slow rewrite, rivals, and mutants."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.concepts.conftest import draw
from tests.reference import surf as slow
from veridical.concepts import (
    Concepts,
    Embeddings,
    Head,
    ice_eval,
    judge,
    perfect,
    random_concepts,
    random_importances,
)
from veridical.concepts.sanity_check import sanity


def inner(h, vectors):
    return [float(h @ v) for v in vectors]


def test_measures_equal_the_slow_rewrite(head, test):
    vectors, importances = draw(5, 4, 3, 12), draw(6, 4, 3)
    found = judge(Concepts.of(vectors, importances), test, head)
    h, y = test.values.numpy(), head.outputs(test.values).numpy()
    guess = slow.surrogate(h, vectors.numpy(), importances.numpy(), head.bias.numpy(), inner)
    labels = test.labels.tolist()
    assert found.mae == pytest.approx(slow.surf_mae(y, guess), abs=1e-12)
    assert found.emd == pytest.approx(slow.surf_emd(y, guess), abs=1e-12)
    assert found.norm_l1 == pytest.approx(slow.norm_l1(y, guess, labels), rel=1e-9)
    assert found.top1 == slow.top1(y, guess)
    assert found.normalised_accuracy == pytest.approx(slow.normalised_accuracy(y, guess, labels))
    assert found.rmse == pytest.approx(float(np.sqrt(((y - guess) ** 2).mean())))
    assert found.reconstruction_mse == pytest.approx(slow.rebuild_mse(h, vectors.numpy(), inner), rel=1e-9)


def test_a_perfect_explanation_scores_exactly_zero(head, test):
    for found in (judge(perfect(head), test, head), ice_eval(perfect(head), test, head)):
        assert (found.mae, found.emd, found.norm_l1, found.top1, found.rank) == (0, 0, 0, 1, 1)
        assert found.normalised_accuracy == 1


def test_surf_gets_strictly_worse_with_randomness_in_ten_of_ten_seeds(head):
    # heads as the sanity check expects them: norms at least 1, embeddings that are activations
    wide = Head(draw(11, 10, 64) / 8 * 3, draw(12, 10) / 10)
    assert float(wide.norms.min()) >= 1
    rows = Embeddings.of(draw(13, 300, 64).abs() + 2 * wide.weight[torch.arange(300) % 10].clamp(min=0), wide)
    table = sanity(rows, wide, draws=10, measures=("ICE-Eval", "SURF"))
    for column in ("mae", "emd"):
        assert table.ordered("SURF", column) == 1
        assert table.ordered("ICE-Eval", column) == 0


def test_ice_eval_cannot_tell_random_importances_from_perfect_ones(head, test):
    one, other = ice_eval(perfect(head), test, head), ice_eval(random_importances(head), test, head)
    assert (judge(perfect(head), test, head).flops, one.flops) == (2 * 4, 4 * 12 * (2 + 1))
    for name, values in one.values.items():
        assert torch.equal(values, other.values[name])
    assert judge(random_importances(head), test, head).mae > 0.1


@pytest.mark.parametrize("reading", ["project", "coordinates", "nonnegative"])
def test_surf_is_ice_eval_where_importances_are_the_heads(head, test, reading):
    vectors = draw(7, 4, 3, 12).abs()
    weights = torch.einsum("cd,ckd->ck", head.weight, vectors)
    concepts = Concepts.of(vectors, weights, reading)
    surf, ice = judge(concepts, test, head), ice_eval(concepts, test, head)
    assert torch.allclose(surf.values["mae"], ice.values["mae"], atol=1e-12)
    assert torch.allclose(surf.values["emd"], ice.values["emd"], atol=1e-12)
    wrong = judge(concepts.with_importances(-weights), test, head)
    assert not torch.allclose(wrong.values["mae"], ice.values["mae"], atol=1e-6)


def test_streaming_changes_nothing(head, test, monkeypatch):
    concepts = random_concepts(head)
    whole = judge(concepts, test, head)
    monkeypatch.setattr("veridical.concepts.measures._ELEMENTS", 36)
    pieces = judge(concepts, test, head)
    for name, values in whole.values.items():
        assert torch.allclose(values, pieces.values[name], atol=1e-12)


def test_positions_are_averaged_as_the_head_averages_them(head):
    maps = Embeddings.of(draw(9, 6, 5, 12).abs(), head)
    flat = Embeddings.of(maps.pooled, head)
    linear = random_concepts(head)
    assert judge(linear, maps, head, "each").mae == pytest.approx(judge(linear, flat, head).mae, abs=1e-12)
    vectors = draw(10, 4, 2, 12).abs()
    parts = Concepts.of(vectors, torch.ones(4, 2), "nonnegative")
    each, pooled = judge(parts, maps, head, "each"), judge(parts, maps, head)
    assert each.mae != pytest.approx(pooled.mae, abs=1e-6)
    assert "positions: each" in each.notes
    by_hand = torch.stack([parts.surrogate(maps.values[:, j], head) for j in range(5)]).mean(0)
    assert torch.allclose(parts.surrogate(maps.values, head), by_hand)


def test_other_heads_have_the_measures_that_apply(test):
    weight = draw(14, 3, 12)
    labels = judge(
        random_concepts(Head(weight, torch.zeros(3), "multilabel")),
        test,
        Head(weight, torch.zeros(3), "multilabel"),
    )
    assert set(labels.values) == {"mae", "squared", "attributes"}
    one = Head(weight[:1], torch.zeros(1), "regression")
    number = judge(random_concepts(one), test, one)
    assert set(number.values) == {"mae", "squared"}
    with pytest.raises(AttributeError, match="has no 'emd'"):
        _ = number.emd
    binary = Head(torch.cat([-weight[:1], weight[:1]]), torch.zeros(2), "binary")
    z = (test.values @ weight[0]).numpy()
    assert np.allclose(binary.probabilities(binary.outputs(test.values))[:, 1], 1 / (1 + np.exp(-z)))


def test_scores_and_frames(head, test):
    found = judge(random_concepts(head), test, head)
    scores = found.scores("mae")
    assert scores.direction == "lower"
    assert scores.mean() == pytest.approx(found.mae)
    assert len(found.to_frame()) == 40
    assert "SURF_MAE" in repr(found)


def test_duplicates_share_their_weight_in_coordinates(head, test):
    once = Concepts.of(head.weight[:, None], torch.ones(4, 1), "coordinates")
    twice = Concepts.of(head.weight[:, None].repeat(1, 2, 1), torch.ones(4, 2), "coordinates")
    assert judge(once, test, head).mae == pytest.approx(judge(twice, test, head).mae, abs=1e-9)
