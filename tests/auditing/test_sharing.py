"""Work that explainers share changes no score; which samples are taken depends on ids and seed alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import veridical as vd
from veridical.auditing.effort import (
    EFFORTS,
    ON_HEAVY,
    Effort,
    effort_of,
    heavy,
    in_drawn_order,
    keyed_order,
    some_of,
)
from veridical.core.key import Key
from veridical.gef import GEF
from veridical.qge.gap import metric_from_json

METHODS = ["saliency", "input_x_gradient", "integrated_gradients", "random"]


@pytest.fixture
def task() -> vd.Task:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)).double()
    return vd.Task(net, torch.randn(40, 8, dtype=torch.float64), labels=torch.arange(40) % 3)


def test_an_audit_scores_as_single_calls_do(task):
    """Bit for bit, though noisy weights are drawn once and subsets are asked once for all explainers."""
    found = vd.audit(task, explainers=METHODS[:3], effort="glance", seed=3, concepts=())
    first = found.task[:24]
    for (who, what), scores in found.evaluation.scores.items():
        if what == "fast_gef":
            continue  # read off the scores of gef_iso
        metric = metric_from_json(scores.provenance["metric"])
        if isinstance(metric, GEF):
            metric.noise_path(first, Key(3), EFFORTS["glance"].search_draws)
        alone = vd.score(metric, first, who, seed=3)
        assert torch.equal(scores.values.nan_to_num(7.0), alone.values.nan_to_num(7.0)), (who, what)


def test_samples_are_a_keyed_choice(task):
    order = keyed_order(task, 0)
    assert sorted(order.tolist()) == list(range(40))
    assert order.tolist() != list(range(40))
    assert keyed_order(task, 1).tolist() != order.tolist()
    ten = some_of(task, 10, 0).ids.tolist()
    assert ten == sorted(order[:10].tolist())
    shuffled = task[torch.randperm(40, generator=torch.Generator().manual_seed(5))]
    assert set(some_of(shuffled, 10, 0).ids.tolist()) == set(ten)
    assert some_of(task, 40, 0) is task
    # a elimination goes on with the samples behind those it has seen, in an order that ids and seed decide
    assert in_drawn_order(shuffled, 20, 0).ids.tolist() == in_drawn_order(task, 20, 0).ids.tolist()
    assert in_drawn_order(task, 40, 0).ids.tolist()[:20] == in_drawn_order(task, 20, 0).ids.tolist()


def test_a_set_sorted_by_class_is_audited_on_all_classes():
    labels = torch.arange(300) // 100
    task = vd.Task(nn.Linear(4, 3), torch.randn(300, 4), labels=labels)
    assert torch.bincount(in_drawn_order(task, 60, 0).labels, minlength=3).min() >= 10


def test_heavy_models_get_a_lighter_plan_by_what_can_be_counted(task):
    large = vd.Task(nn.Sequential(nn.Flatten(), nn.Linear(12_000, 2)), torch.randn(2, 3, 50, 80))
    wide = vd.Task(nn.Sequential(nn.Linear(4, 500_001), nn.Linear(500_001, 2)), torch.randn(2, 4))
    assert [heavy(t) for t in (task, large, wide)] == [False, True, True]
    assert effort_of("quick", task) is EFFORTS["quick"]
    assert effort_of("quick", large) == ON_HEAVY["quick"]
    assert effort_of("thorough", large) is EFFORTS["thorough"]
    own = EFFORTS["quick"]
    assert isinstance(own, Effort)
    assert effort_of(own, large) is own


def test_the_second_opinion_is_given_or_says_why_not(task):
    effort = replace(EFFORTS["glance"], gef_draws=0, meta_samples=24, describe=True)
    found = [
        vd.audit(task, explainers=METHODS[:count], effort=effort, concepts=(), progress=False)
        for count in (1, 2)
    ]
    assert [one.reliability is None for one in found] == [True, False]
    assert any("were not meta-evaluated here: it needs" in note for note in found[0].notes)
    assert found[1].reliability.explainers == tuple(METHODS[:2])
    assert found[1].verdict.metrics[0].reliability > 0
