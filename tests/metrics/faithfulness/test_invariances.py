"""What must not change a score: rescaling, relabelling, batches, order; and what a score must cost."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from tests.metrics.faithfulness.cases import crooked_task, explained, image_task, random_map, text_task
from veridical.core.space import Space
from veridical.metrics import (
    Comprehensiveness,
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
    Road,
    Selectivity,
    SensitivityN,
    TextSufficiency,
)
from veridical.models.predictor import Plan
from veridical.perturb.fills import Zero
from veridical.values.task import Task

close = torch.testing.assert_close
RANKED = [PixelFlipping(), PixelFlipping(order="lerf"), Deletion(), Insertion(), Monotonicity(), Road()]
ALL = [
    *RANKED,
    FaithfulnessCorrelation(runs=10),
    FaithfulnessEstimate(),
    Infidelity(draws=10),
    Infidelity(draws=10, perturbation="noise"),
    Irof(segments=6),
    MonotonicityCorrelation(draws=2),
    RegionPerturbation(patch=2, regions=4),
    Selectivity(patch=2),
    SensitivityN(draws=10),
]


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


@pytest.mark.parametrize("metric", ALL, ids=lambda m: f"{m.name}-{getattr(m, 'order', '')}")
def test_scores_do_not_depend_on_the_batch_or_the_order(metric):
    task = image_task(samples=9)
    explanation = random_map(task)
    before = task.inputs.clone(), explanation.values.clone()
    want = metric(task, explanation).values
    for rows in (8, 64):
        close(metric(task.with_plan(Plan(rows=rows)), explanation).values, want, atol=1e-9, rtol=0)
    shuffle = torch.tensor([4, 1, 8, 0, 3, 7, 2, 6, 5])
    again = metric(task[shuffle], explanation.take(shuffle)).values
    close(again, want[shuffle], atol=1e-9, rtol=0, equal_nan=True)
    # and nothing the caller owns was written to
    assert torch.equal(before[0], task.inputs)
    assert torch.equal(before[1], explanation.values)


@pytest.mark.parametrize("metric", ALL, ids=lambda m: m.name)
def test_every_sample_is_scored_as_if_alone(metric):
    """Not only the first batch, and never by the samples beside it."""
    task = image_task(samples=5)
    explanation = random_map(task)
    want = metric(task, explanation).values
    alone = torch.cat([metric(task[i : i + 1], explanation.take(slice(i, i + 1))).values for i in range(5)])
    close(alone, want, atol=1e-9, rtol=0, equal_nan=True)


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


def test_padding_is_never_a_feature():
    """A text padded further, with junk relevance on the padding, scores the same."""
    task = text_task()
    explanation = random_map(task)
    more = torch.cat([task.inputs, torch.zeros(4, 3, dtype=torch.int64)], 1)
    valid = torch.cat([task.space.valid, torch.zeros(4, 3, dtype=torch.bool)], 1)
    wider = Task(task.predictor.model, more, space=Space.tokens(12, valid), fill=task.fill)
    junk = torch.cat([explanation.values, torch.full((4, 3), 50.0, dtype=torch.float64)], 1)
    for metric in (
        Comprehensiveness(),
        TextSufficiency(),
        PixelFlipping(),
        Insertion(),
        Monotonicity(),
        FaithfulnessEstimate(),
        MonotonicityCorrelation(),
        RegionPerturbation(),
        Selectivity(),
    ):
        a, b = metric(task, explanation).values, metric(wider, explained(wider, junk)).values
        close(a, b, atol=1e-9, rtol=0, equal_nan=True)


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


def test_settings_survive_json():
    for metric in [*ALL, Comprehensiveness(), TextSufficiency(bins=(0.5,))]:
        assert type(metric).from_json(metric.to_json()) == metric
    assert replace(Road(), order="lerf").better == "higher"
