"""What must not change a score: rescaling, relabelling, batches, order; and what a score must cost."""

import pytest
import torch
from torch import nn

from tests.metrics.faithfulness.cases import crooked_task, explained, image_task, random_map
from veridical.metrics import (
    Deletion,
    FaithfulnessCorrelation,
    FaithfulnessEstimate,
    Infidelity,
    Insertion,
    Monotonicity,
    MonotonicityCorrelation,
    PixelFlipping,
    RegionPerturbation,
    Road,
    Selectivity,
    SensitivityN,
)
from veridical.perturb.fills import Zero
from veridical.values.task import Task

close = torch.testing.assert_close
RANKED = [PixelFlipping(), PixelFlipping(order="lerf"), Deletion(), Insertion(), Monotonicity(), Road()]


@pytest.mark.parametrize("metric", RANKED, ids=lambda m: f"{m.name}-{getattr(m, 'order', '')}")
def test_monotone_rescaling_changes_no_ranking_metric(metric):
    task = image_task()
    explanation = random_map(task)
    assert metric.ranks_only
    rescaled = explanation.with_values(torch.exp(3 * explanation.values) - 7)
    close(metric(task, explanation).values, metric(task, rescaled).values, atol=0, rtol=0)


@pytest.mark.parametrize(
    "metric",
    [
        PixelFlipping(),
        Deletion(),
        Insertion(),
        Monotonicity(),
        FaithfulnessEstimate(),
        Selectivity(),
        RegionPerturbation(),
        MonotonicityCorrelation(fill=Zero()),
    ],
    ids=lambda m: m.name,
)
def test_permuting_features_with_the_model_changes_nothing(metric):
    task = crooked_task()
    explanation = random_map(task)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))

    class Relabelled(nn.Module):
        def forward(self, x):
            return task.predictor.model(x[:, order.argsort()])

    moved = Task(Relabelled(), task.inputs[:, order], targets=task.targets, fill=Zero())
    again = metric(moved, explained(moved, explanation.values[:, order]))
    close(metric(task, explanation).values, again.values, atol=1e-9, rtol=0)


@pytest.mark.parametrize(
    ("metric", "asked"),
    [
        (PixelFlipping(), 36),
        (PixelFlipping(per_step=5), 8),
        (PixelFlipping(steps=6), 6),
        (PixelFlipping(steps=100), 36),
        (Deletion(steps=9), 9),
        (Insertion(steps=9), 9),
        (Monotonicity(steps=4), 4),
        (MonotonicityCorrelation(steps=4, draws=3), 12),
        (MonotonicityCorrelation(steps=4, fill=Zero()), 4),
        (FaithfulnessCorrelation(runs=7), 7),
        (FaithfulnessEstimate(per_step=6), 6),
        (SensitivityN(draws=4, shares=(0.1, 0.5)), 8),
        (Infidelity(draws=11), 11),
        (Infidelity(draws=11, perturbation="noise"), 11),
        (RegionPerturbation(patch=2, regions=5), 5),
        (RegionPerturbation(patch=3, regions=50), 4),
        (Selectivity(patch=3), 4),
        (Road(shares=(0.2, 0.6)), 2),
    ],
    ids=lambda v: getattr(v, "name", str(v)),
)
def test_cost_in_evaluations(metric, asked):
    task = image_task()
    scores = metric(task, random_map(task))
    assert scores.cost.forward == 3 * asked
    assert scores.cost.backward == 0


def test_a_true_map_beats_a_random_one_on_average():
    from veridical.explainers.gradients import InputXGradient

    task = crooked_task(samples=30)
    true, random = InputXGradient()(task), random_map(task)
    for metric in (
        PixelFlipping(),
        Insertion(),
        FaithfulnessCorrelation(runs=30),
        FaithfulnessEstimate(),
        SensitivityN(draws=30),
        MonotonicityCorrelation(fill=Zero()),
        RegionPerturbation(),
        Monotonicity(strict=False),
    ):
        better = metric(task, true).utility.nanmean() - metric(task, random).utility.nanmean()
        assert better > 0, metric.name
