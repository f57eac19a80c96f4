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
from veridical.concepts.measures import ice_flops, surf_flops
from veridical.concepts.sanity_check import sanity
from veridical.errors import InputError, ShapeError, VeridicalWarning


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


def test_the_network_seen_through_the_head_is_the_network(head):
    from veridical.concepts.methods.cshap import Network
    from veridical.core.key import Key

    network = Network(3, head, 7, Key(0))
    codes = draw(8, 5, 4, 3).float()
    first, first_bias, second, second_bias = (p.detach() for p in network.parameters)
    for n in range(5):
        for i in range(4):
            rebuilt = second @ torch.relu(first @ codes[n, i] + first_bias) + second_bias
            expected = head.weight[i].float() @ rebuilt + head.bias[i].float()
            assert network(codes)[n, i].item() == pytest.approx(expected.item(), abs=1e-4)


def test_operations_are_the_papers():
    assert surf_flops(100, 1) == 200
    assert ice_flops(100, 1, 2048) == 614_400


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
    with pytest.raises(InputError, match="no measure is called"):
        found.scores("maee")


def test_bad_concepts_are_refused_or_warned_about(head, test):
    with pytest.raises(InputError, match="concept 1 of output 0 is a zero vector"):
        Concepts.of(torch.stack([torch.ones(1, 12), torch.zeros(1, 12)], 1), torch.ones(1, 2))
    with pytest.warns(VeridicalWarning, match="same direction"):
        Concepts.of(torch.ones(4, 2, 12), torch.ones(4, 2))
    with pytest.warns(VeridicalWarning, match="13 concepts in 12 dimensions"):
        Concepts.of(draw(0, 4, 13, 12), torch.ones(4, 13))
    with pytest.raises(ShapeError, match="do not belong together"):
        Concepts.of(torch.ones(3, 1, 12), torch.ones(4, 1))
    with pytest.raises(ShapeError, match="the head expects 12"):
        judge(Concepts.of(torch.ones(4, 1, 11), torch.ones(4, 1)), test, head)
    with pytest.raises(InputError, match="collect with spatial=True"):
        judge(perfect(head), test, head, "each")
    with pytest.raises(ShapeError, match="11 dimensions"):
        Embeddings.of(torch.ones(2, 11), head)
    with pytest.raises(InputError, match="NaN"):
        Embeddings.of(torch.full((2, 12), torch.nan), head)


def test_duplicates_share_their_weight_in_coordinates(head, test):
    once = Concepts.of(head.weight[:, None], torch.ones(4, 1), "coordinates")
    twice = Concepts.of(head.weight[:, None].repeat(1, 2, 1), torch.ones(4, 2), "coordinates")
    assert judge(once, test, head).mae == pytest.approx(judge(twice, test, head).mae, abs=1e-9)


@pytest.mark.parametrize(("outputs", "kind"), [(5, "multiclass"), (2, "binary"), (70, "multiclass")])
def test_narrow_and_wide_heads_follow_the_formula(outputs, kind):
    """Few outputs share one product with the surrogate, many have their own: the numbers are the same."""
    draw = torch.Generator().manual_seed(outputs)
    weight = torch.randn(outputs, 9, generator=draw, dtype=torch.float64)
    weight = torch.stack([-weight[0], weight[0]]) if kind == "binary" else weight
    head = Head(weight, torch.randn(outputs, generator=draw), kind)
    vectors = torch.randn(outputs, 3, 9, generator=draw, dtype=torch.float64)
    importances = torch.randn(outputs, 3, generator=draw, dtype=torch.float64)
    rows = Embeddings.of(torch.randn(11, 9, generator=draw), head)
    found = judge(Concepts.of(vectors, importances), rows, head)
    h = rows.values.double()
    y = h @ head.weight.T + head.bias
    guess = torch.einsum("nd,ckd,ck->nc", h, vectors, importances) + head.bias
    moved = (head.probabilities(y) - head.probabilities(guess)).abs().sum(-1) / 2
    assert torch.allclose(found.values["mae"], (y - guess).abs().mean(-1))
    assert torch.allclose(found.values["squared"], (y - guess).square().mean(-1))
    assert torch.allclose(found.values["emd"], moved)
    assert torch.equal(found.values["top1"] == 1, y.argmax(-1) == guess.argmax(-1))
