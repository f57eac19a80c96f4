"""Tasks with a known answer are what they say, and their winners win."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

import veridical as vd
from tests.reference.fidelity import expected_fall
from tests.reference.shapley import exact_shapley
from veridical.data import known_answers

EXACT = ("linear", "interactions", "tiers", "planted_patch", "planted_window", "planted_tokens")


def hit_share(answer, values):
    """How often the strongest of the features is one that matters."""
    strongest = values.double().masked_fill(_missing(answer.task), -torch.inf).argmax(1, keepdim=True)
    return float(answer.task.masks.gather(1, strongest).double().mean())


def similarity(answer, values):
    values = values.double().masked_fill(_missing(answer.task), 0.0)
    return float(torch.cosine_similarity(values, answer.truth.double(), dim=1).mean())


def _missing(task):
    valid = task.space.valid
    return torch.zeros(len(task), task.space.n_features, dtype=torch.bool) if valid is None else ~valid


def explained(name, task):
    return vd.explain(name, task).values


@pytest.mark.parametrize("name", EXACT)
def test_predictions_are_right_and_the_truth_lies_on_what_matters(name):
    answer = vd.tasks.known(name)
    task = answer.task
    assert torch.equal(task.predictions, task.labels)
    assert task.name == f"known/{name}"
    if name != "tiers":  # lower tiers matter a little
        assert not (answer.truth.abs() > 0)[~task.masks].any()
    assert torch.equal(vd.tasks.load(f"known/{name}", samples=5).inputs, vd.tasks.known(name, 5).task.inputs)
    assert name in repr(answer)


@pytest.mark.parametrize("name", ["linear", "interactions"])
def test_the_truth_of_tables_is_the_shapley_value(name):
    answer = vd.tasks.known(name, samples=2)
    task = answer.task
    used = known_answers.USED
    for row in range(2):

        def game(kept, row=row):
            full = torch.zeros(1, known_answers.COLUMNS)
            full[0, list(kept)] = task.inputs[row, list(kept)]
            with torch.no_grad():
                return float(task.model(full)[0, task.targets[row]])

        expected = exact_shapley(game, used)
        assert np.allclose(answer.truth[row, :used].numpy(), expected, atol=1e-5)
        assert not np.allclose(-answer.truth[row, :used].numpy(), expected, atol=1e-2)  # a flipped sign shows


def exact_winners():
    for name in EXACT:
        for winner in vd.tasks.known(name, samples=1).winners:
            yield pytest.param(name, winner)


@pytest.mark.parametrize(("name", "winner"), list(exact_winners()))
def test_winners_find_what_matters(name, winner):
    answer = vd.tasks.known(name, samples=40)
    values = explained(winner, answer.task)
    assert similarity(answer, values) > 0.8
    if name != "interactions":
        signed_hits = values if winner != "saliency" else values.abs()
        assert hit_share(answer, signed_hits) == 1.0


@pytest.mark.parametrize("name", EXACT)
def test_losers_lose(name):
    answer = vd.tasks.known(name, samples=40)
    worst = min(similarity(answer, explained(w, answer.task)) for w in answer.winners if w != "occlusion")
    offered = [loser for loser in answer.losers if loser in vd.list_explainers()]
    assert "random" in offered
    for loser in offered:
        assert similarity(answer, explained(loser, answer.task)) < worst - 0.2, loser


def test_integrated_gradients_share_interactions_and_others_do_not():
    answer = vd.tasks.known("interactions", samples=40)
    assert torch.allclose(explained("integrated_gradients", answer.task), answer.truth, atol=1e-3)
    assert not torch.allclose(explained("input_x_gradient", answer.task), answer.truth, atol=1e-1)


# --- tiers ----------------------------------------------------------------------------------------------


def tier_probability(counts):
    """g(j_1, j_2, j_3), asked of the model itself."""
    answer = vd.tasks.known("tiers", samples=1)
    row = torch.cat(
        [torch.full((n,), w) for n, w in zip(counts, known_answers.tier_weights(), strict=True)]
        + [torch.zeros(sum(known_answers.TIERS) - sum(counts))]
    )
    with torch.no_grad():
        return float(answer.task.model(row[None]).double().softmax(1)[0, 1])


def test_the_probability_grows_lexicographically():
    orders = [(0, 0, 0), (0, 0, 50), (0, 1, 0), (0, 30, 50), (1, 0, 0), (9, 30, 50), (10, 0, 0), (20, 30, 50)]
    values = [tier_probability(counts) for counts in orders]
    assert values == sorted(values)
    assert len(set(values)) == len(values)


def test_every_sample_has_its_tiers_elsewhere():
    task = vd.tasks.load("known/tiers")
    for size, weight in zip(known_answers.TIERS, known_answers.tier_weights(), strict=True):
        assert ((task.inputs == weight).sum(1) == size).all()
    assert (task.masks.sum(1) == known_answers.TIERS[0]).all()
    assert len({tuple(row.nonzero()[:, 0].tolist()) for row in task.masks}) > 150


def obeys_theorem(drops, c1, knee):
    """Non-decreasing up to c_1, non-increasing from max(B / alpha, c_1) on."""
    turn = max(knee, c1)
    rises = all(a <= b + 1e-9 for a, b in pairwise(drops[: c1 + 1]))
    falls = all(a >= b - 1e-9 for a, b in pairwise(drops[turn:]))
    return rises and falls


def test_theorem_1_holds_on_two_tiers_and_fails_where_it_should():
    """With beta n = 5 and alpha = 1/2 the knee lies at 10, before c_1 = 20: flat between, then falling."""
    weights = known_answers.tier_weights()
    gain = 12.0 / sum(n * w for n, w in zip(known_answers.TIERS, weights, strict=True))

    def g(counts):
        z = gain * sum(n * w for n, w in zip(counts, weights, strict=True)) - 6.0
        return 1 / (1 + np.exp(-z))

    assert g([15, 30, 50]) == pytest.approx(tier_probability((15, 30, 50)), abs=1e-6)
    tiers, budget, alpha = known_answers.TIERS, 5, 0.5
    drops = [0.0, *(expected_fall(tiers, g, size, min(int(alpha * size), budget)) for size in range(1, 60))]
    assert obeys_theorem(drops, 20, 10)
    flat = drops[10:21]
    assert max(flat) - min(flat) < 1e-9
    assert drops[30] < drops[20] - 1e-3
    assert not obeys_theorem(drops, 26, 10)  # the tier ends at 20, no later


# --- planted --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["planted_patch", "planted_window"])
def test_only_the_planted_place_answers(name):
    task = vd.tasks.load(f"known/{name}")
    with torch.no_grad():
        answers = task.model.places(task.inputs)
    assert ((answers > 0).flatten(1).sum(1) == 1).all()
    assert torch.equal(answers.flatten(2).amax(-1).argmax(1), task.labels)
    # nothing outside the planted place has any say: replace all of it and the outputs stay
    keep = task.space.expand(task.masks).expand_as(task.inputs)
    with torch.no_grad():
        assert torch.allclose(task.model(task.inputs * keep), task.outputs, atol=1e-6)
        assert task.model(task.inputs * ~keep).abs().max() < 1e-6


def test_planted_words_are_words_and_pads_are_none():
    answer = vd.tasks.known("planted_tokens")
    task = answer.task
    assert (task.masks.sum(1) == 3).all()
    assert not (task.masks & ~task.space.valid).any()
    assert torch.equal(answer.truth > 0, task.masks)
    assert torch.allclose(answer.truth.sum(1), task.outputs.gather(1, task.targets[:, None])[:, 0])
    assert task.space.feature_name(int(task.masks[0].nonzero()[0]), 0).startswith("cue")


# --- learned --------------------------------------------------------------------------------------------


def test_the_clever_hans_looks_at_nothing_but_the_watermark():
    answer = vd.tasks.known("clever_hans", samples=60)
    task = answer.task
    assert (task.predictions == 1).all()
    assert (task.masks.sum(1) == 4).all()
    keep = task.space.expand(task.masks)
    with torch.no_grad():
        assert (task.model(task.inputs.masked_fill(keep, 0.0)).argmax(1) == 0).all()
        # another digit under the same watermark changes nothing
        assert (task.model(torch.where(keep, task.inputs, task.inputs.roll(1, 0))).argmax(1) == 1).all()
    for winner in answer.winners:
        assert hit_share(answer, explained(winner, task)) > 0.95, winner
    assert hit_share(answer, explained("random", task)) < 0.3


@pytest.mark.parametrize("share", [10, 15, 20, 25])
def test_colour_digits_cover_exactly_their_share(share):
    answer = vd.tasks.known(f"colour_digits_{share}")
    task = answer.task
    assert (task.masks.sum(1) == round(share / 100 * 784)).all()
    assert torch.equal(answer.truth.bool(), task.masks)
    inside = task.space.expand(task.masks)
    assert (task.inputs.masked_fill(inside, 0.0) <= 0.15).all()
    assert (task.predictions == task.labels).double().mean() > 0.93
    for winner in answer.winners:
        assert hit_share(answer, explained(winner, task)) > 0.9, winner
