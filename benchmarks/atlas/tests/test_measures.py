"""Each measure against its slow rewrite, in closed form, and with what is missing or tied."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import spearmanr

import veridical as vd
from benchmarks.atlas import measures
from benchmarks.atlas.bench import Damaged, make_bench, nearness
from benchmarks.atlas.tests import reference as slow
from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.meta.damage import KINDS, LEVELS

NONE = torch.zeros(())


def drawn(*shape: int, steps: int = 5) -> torch.Tensor:
    """Whole numbers with many ties."""
    ids = torch.arange(math.prod(shape[:-1]))
    return keyed.integers(Key(3) / str(shape), ids, 0, shape[-1], steps).double().reshape(shape)


def explained(values: torch.Tensor, valid: torch.Tensor | None = None) -> vd.Explanation:
    n, features = values.shape
    space = vd.Space.columns(features) if valid is None else vd.Space.tokens(features, valid)
    return vd.Explanation(values, space, torch.zeros(n, dtype=torch.int64), torch.arange(n))


def test_nearness_is_its_slow_rewrite_also_with_ties_and_absent_features():
    values, truth = drawn(6, 7), drawn(6, 7, steps=3) - 1
    valid = torch.ones(6, 7, dtype=torch.bool)
    valid[0, 5:], valid[1, 6:] = False, False
    found = nearness(explained(values, valid), truth)
    for n in range(6):
        kept = valid[n]
        expected = slow.nearness(values[n][kept].tolist(), truth[n][kept].tolist())
        assert found[n] == pytest.approx(expected, abs=1e-12)


def test_nearness_of_the_truth_of_its_opposite_and_of_a_constant():
    truth = torch.tensor([[0.0, 2.0, 1.0, 0.0]])
    for values, expected in ((3 * truth + 1, 1.0), (-truth, -1.0), (0 * truth, 0.0)):
        assert nearness(explained(values), truth).item() == expected


def test_duels_are_their_slow_rewrite():
    truth, rivals, near = drawn(9), drawn(5, 9), drawn(5, 9, steps=3) / 2
    near[0] = 0.5  # so that every sample has a rival
    rivals[1, 2] = torch.nan
    ties = torch.full((9,), 1.0)
    found = measures.truth_first(truth, rivals, near, ties)
    expected = [
        slow.truth_first(float(truth[n]), rivals[:, n].tolist(), near[:, n].tolist(), 1.0) for n in range(9)
    ]
    assert found.tolist() == pytest.approx(expected)


def test_agreement_is_spearmans_and_0_where_all_maps_score_alike():
    scores, near = drawn(8, 6, steps=4), drawn(8, 6, steps=7)
    scores[:, 0] = 2.0
    found = measures.agreement(scores, near, torch.zeros(6))
    assert found[0] == 0
    for n in range(1, 6):
        assert found[n] == pytest.approx(spearmanr(scores[:, n], near[:, n]).statistic)
    assert measures.agreement(torch.full((8, 1), torch.nan), near[:, :1], torch.zeros(1)).isnan().all()


def test_scores_within_rounding_agree_to_nothing():
    near = torch.arange(5.0)[:, None]
    assert measures.agreement(1 + 1e-9 * near, near, torch.tensor([1e-5])) == 0
    assert measures.agreement(near, near, torch.tensor([1e-5])) == pytest.approx(1)


def test_noise_is_its_slow_rewrite_and_0_to_1():
    scores = drawn(3, 4, 6)
    scores[1, 2, 3] = torch.nan
    assert measures.noise_share(scores) == pytest.approx(slow.noise_share(scores.tolist()))
    same = drawn(4, 6).expand(3, 4, 6)
    assert measures.noise_share(same) == 0
    only_chance = drawn(3, 1, 6).expand(3, 4, 6)
    assert measures.noise_share(only_chance) == 1
    assert math.isnan(measures.noise_share(same[:1]))
    assert math.isnan(measures.noise_share(torch.full((2, 3, 4), torch.nan)))


def test_unmoved_counts_samples_whose_map_changed():
    before, after = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([1.0, 2.0, 9.0, torch.nan])
    differs = torch.tensor([True, False, True, True])
    assert measures.unmoved(before, after, torch.zeros(4), differs) == pytest.approx(1 / 3)
    assert math.isnan(measures.unmoved(before, after, torch.zeros(4), torch.zeros(4, dtype=torch.bool)))


def test_shares_lie_between_0_and_1_and_stay_missing():
    assert measures.share(torch.tensor([1.0, 1.0]), -1.0) == (1.0, 1.0, 1.0)
    mean, low, high = measures.share(torch.tensor([0.0, 1.0]))
    assert (mean, low, high) == (0.5, 0.0, 1.0)
    assert all(math.isnan(v) for v in measures.share(torch.tensor([torch.nan])))


# --- the bench ---------------------------------------------------------------------------------------------


def test_a_damaged_method_damages_equal_maps_alike_and_others_otherwise():
    task = vd.tasks.load("known/linear", 6)
    method = Damaged("input_x_gradient", "permuted", 1.0)
    once, again = method(task, Key(1)), method(task, Key(2))
    assert torch.equal(once.values, again.values)
    plain = vd.explain("input_x_gradient", task)
    assert torch.equal(once.values.sort(-1).values, plain.values.sort(-1).values)
    assert not torch.equal(once.values, plain.values)
    moved = method(task.with_inputs(task.inputs * (1 + 1e-6)), Key(1))
    assert not torch.allclose(once.values, moved.values, rtol=1e-3)


@pytest.mark.parametrize("name", ["known/linear", "known/planted_tokens"])
def test_the_bench_has_the_truth_its_damage_and_rivals(name):
    bench = make_bench(name, 6, 0, {"mine": "saliency"})
    assert bench.ladder[0] == "none"
    assert len(bench.ladder) == 1 + len(LEVELS) + 1 + 1
    assert {label.split()[0] for label in bench.ladder[1:]} == set(KINDS)
    assert "mine" in bench.rivals
    assert "mine" in bench.maps
    assert "mine" in bench.methods
    near = {label: nearness(bench.maps[label], bench.truth).mean() for label in bench.maps}
    assert near["none"] == 1
    assert near["negated 1"] == -1
    assert near["permuted 0.2"] > near["permuted 0.6"] > near["permuted 1"]
    # a method stands for the truth where a finished map will not do
    assert nearness(bench.maps_of_methods["none"], bench.truth).mean() == 1
    assert list(bench.methods)[: len(bench.ladder)] == bench.ladder
    assert "integrated_gradients" not in bench.methods  # it would be asked in hundreds of worlds


def test_a_trained_task_has_no_truth_and_a_reference_instead():
    bench = make_bench("breast_cancer", 6, 0)
    assert bench.truth is None
    assert bench.maps["none"].explainer in ("occlusion", "exact_shapley")
