"""Every metric against its slow rewrite, on a model with interactions; each check must reject a wrong map."""

import numpy as np
import pytest
import torch

from tests.metrics.faithfulness.cases import asker, crooked_task, image_task, random_map, vector
from tests.reference import faithfulness as slow
from veridical.core.key import Key
from veridical.metrics import (
    Deletion,
    FaithfulnessCorrelation,
    FaithfulnessEstimate,
    Infidelity,
    Insertion,
    Irof,
    Monotonicity,
    MonotonicityCorrelation,
    PixelFlipping,
    RegionPerturbation,
    Selectivity,
    SensitivityN,
)
from veridical.metrics.faithfulness.infidelity import RandomSquares
from veridical.perturb.fills import Zero
from veridical.perturb.rules import RandomSubsets

ROW = crooked_task()
IMAGE = image_task()
SQUARES = [(r // 3) * 2 + c // 3 for r in range(6) for c in range(6)]


def compare(task, metric, reference, explanation):
    """Assert that the metric gives what the reference gives, sample by sample."""
    got = metric(task, explanation).values
    want = [
        reference(
            asker(task, i, metric.response),
            vector(task, i),
            explanation.values[i].numpy(),
            np.zeros(task.space.n_features),
            i,
        )
        for i in range(len(task))
    ]
    np.testing.assert_allclose(got.numpy(), want, atol=1e-7)


FEW = crooked_task(samples=40, features=3)
"""On three features some maps are monotone and some are not."""
SEGMENTS = Irof(segments=6).regions_of(IMAGE).labels
CASES = {
    "flip": (ROW, PixelFlipping(), lambda a, x, e, z, i: slow.pixel_flipping(a, x, e, z)),
    "flip by 5": (ROW, PixelFlipping(per_step=5), lambda a, x, e, z, i: slow.pixel_flipping(a, x, e, z, 5)),
    "lerf": (
        ROW,
        PixelFlipping(order="lerf"),
        lambda a, x, e, z, i: slow.pixel_flipping(a, x, e, z, least_first=True),
    ),
    "deletion": (ROW, Deletion(steps=4), lambda a, x, e, z, i: slow.pixel_flipping(a, x, e, z, 3)),
    "insertion": (ROW, Insertion(steps=4), lambda a, x, e, z, i: slow.insertion(a, x, e, z, 3)),
    "estimate": (ROW, FaithfulnessEstimate(), lambda a, x, e, z, i: slow.faithfulness_estimate(a, x, e, z)),
    "estimate by 5": (
        ROW,
        FaithfulnessEstimate(per_step=5, response="logit"),
        lambda a, x, e, z, i: slow.faithfulness_estimate(a, x, e, z, 5),
    ),
    "monotonicity correlation": (
        ROW,
        MonotonicityCorrelation(fill=Zero()),
        lambda a, x, e, z, i: slow.monotonicity_correlation(a, x, e, z),
    ),
    "monotonicity": (FEW, Monotonicity(), lambda a, x, e, z, i: slow.monotonicity(a, x, e, z)),
    "regions": (
        IMAGE,
        RegionPerturbation(patch=3, regions=3),
        lambda a, x, e, z, i: slow.region_perturbation(a, x, e, z, SQUARES, 3),
    ),
    "selectivity": (
        IMAGE,
        Selectivity(patch=3),
        lambda a, x, e, z, i: slow.selectivity(a, x, e, z, SQUARES),
    ),
    "irof": (IMAGE, Irof(segments=6), lambda a, x, e, z, i: slow.irof(a, x, e, z, SEGMENTS[i].tolist())),
}


@pytest.mark.parametrize("case", CASES)
def test_metric_equals_its_reference(case):
    task, metric, reference = CASES[case]
    explanation = random_map(task)
    compare(task, metric, reference, explanation)
    # of another map; signs do not matter to the correlation
    other = np.flip if case == "monotonicity correlation" else np.negative
    with pytest.raises(AssertionError):
        compare(task, metric, lambda a, x, e, z, i: reference(a, x, other(e), z, i), explanation)


def drawn(rule, sample, count):
    masks = rule.removed(slice(sample, sample + 1), slice(0, count))[0]
    return [list(np.flatnonzero(mask.numpy())) for mask in masks]


def test_correlations_over_subsets_equal_their_references():
    explanation, key = random_map(ROW), Key(7)
    metric = FaithfulnessCorrelation(runs=15, subset_size=4)
    rule = RandomSubsets(key / metric.name, ROW.draw_ids, 12, 15, torch.tensor([4]))

    def reference(a, x, e, z, i):
        return slow.subset_correlation(a, x, e, z, drawn(rule, i, 15))

    got = metric(ROW, explanation, key).values
    want = [
        reference(
            asker(ROW, i, "probability"), vector(ROW, i), explanation.values[i].numpy(), np.zeros(12), i
        )
        for i in range(4)
    ]
    np.testing.assert_allclose(got.numpy(), want, atol=1e-7)

    metric = SensitivityN(draws=15, shares=(0.25, 0.5))
    sets = RandomSubsets(key / metric.name, ROW.draw_ids, 12, 15, torch.tensor([3, 6]))
    got = metric(ROW, explanation, key)
    for i in range(4):
        both = drawn(sets, i, 30)
        assert [len(s) for s in both[:2]] == [3, 6]
        want = slow.sensitivity_n(
            asker(ROW, i, "probability"),
            vector(ROW, i),
            explanation.values[i].numpy(),
            np.zeros(12),
            [both[0::2], both[1::2]],
        )
        assert abs(float(got.values[i]) - want) < 1e-7
    assert 3 * 30 < got.cost.forward <= 4 * 30  # a subset that is drawn twice is asked once


@pytest.mark.parametrize("scaling", ["none", "optimal"])
def test_infidelity_equals_its_reference(scaling):
    explanation, key = random_map(IMAGE), Key(5)
    metric = Infidelity(draws=12, patch=3, scaling=scaling, response="logit")
    rule = RandomSquares(key / metric.name, IMAGE.draw_ids, (6, 6), 3, 12)
    got = metric(IMAGE, explanation, key).values
    for i in range(len(IMAGE)):
        squares = drawn(rule, i, 12)
        assert {len(s) for s in squares} == {9}
        args = (
            asker(IMAGE, i, "logit"),
            vector(IMAGE, i),
            explanation.values[i].numpy(),
            np.zeros(36),
            squares,
        )
        assert abs(float(got[i]) - slow.infidelity(*args, optimal=scaling == "optimal")) < 1e-6
        assert abs(float(got[i]) - slow.infidelity(*args, optimal=scaling != "optimal")) > 1e-6
