"""Work that explainers share changes no score; which samples are taken depends on ids and seed alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import veridical as vd
from veridical.audit.effort import EFFORTS, ON_HEAVY, Effort, effort_of, heavy
from veridical.audit.panel import choose_explainers, choose_judges
from veridical.audit.reliability import enough_samples, where_agreement_falls
from veridical.audit.sampling import chosen, some_of
from veridical.audit.scoring import score_everyone
from veridical.gef import GEF, NoisePath
from veridical.masking.shared_work import shared, sharing
from veridical.metrics import registry
from veridical.qge import QGE
from veridical.random.keyed import Key

METHODS = ["saliency", "input_x_gradient", "integrated_gradients", "random"]


@pytest.fixture
def task() -> vd.Task:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)).double()
    return vd.Task(net, torch.randn(40, 8, dtype=torch.float64), labels=torch.arange(40) % 3)


def test_an_audit_scores_as_single_calls_do(task):
    """Bit for bit, though noisy weights are drawn once and subsets are asked once for all explainers."""
    effort = EFFORTS["glance"]
    panel = choose_explainers(task, METHODS, effort)
    seats, _ = choose_judges(task, effort, None)
    found = score_everyone(task, panel, seats, 3, False)
    for (who, what), scores in found.scores.items():
        explainer = {**panel.explainers, **panel.controls}[who]
        alone = vd.score(seats[what].metric, task, explainer, seed=3)
        assert torch.equal(scores.values.nan_to_num(7.0), alone.values.nan_to_num(7.0)), (who, what)
    assert [who for who, _ in found.scores][:: len(seats)] == METHODS


def test_subsets_are_asked_once_for_all_explainers(task):
    metric = QGE(registry.make("faithfulness_correlation", runs=12))
    with sharing(task):
        costs = [vd.score(metric, task, vd.explain(who, task)).cost.forward for who in METHODS]
    # subsets of few features that are drawn twice are asked once, and stay answered
    assert 8 * len(task) < costs[0] <= 12 * len(task)
    assert costs[1:] == [0, 0, 0]
    assert vd.score(metric, task, vd.explain(METHODS[0], task)).cost.forward == 0


def test_noisy_models_are_asked_once_for_all_explainers(task):
    metric = GEF(draws=2)
    path = metric.noise_path(task, Key(0), 2)
    makers = {who: choose_explainers(task, [who], EFFORTS["glance"]) for who in METHODS[:3]}
    explainers = {who: panel.explainers[who] for who, panel in makers.items()}
    costs = [scores.cost.forward for scores in metric.score_all(task, explainers, Key(0)).values()]
    each = [metric(task, explainer, Key(0)).cost.forward for explainer in explainers.values()]
    alone = [cost - path.rows for cost in each]
    rows = 2 * 5 * len(task)
    assert costs[0] == alone[0]
    # a gradient method finds the answers on its way; one that does not is spared asking for them
    assert {a - c for a, c in zip(alone[1:], costs[1:], strict=True)} <= {0, rows}
    assert sum(costs) < sum(alone)


def test_one_that_raises_leaves_the_others(task):
    def broken(model, inputs, targets):
        raise ValueError("no map today")

    makers = choose_explainers(task, {"a": "saliency", "b": broken, "c": "gradient"}, EFFORTS["glance"])
    found = GEF(draws=2).score_all(task, makers.explainers, Key(0))
    assert "no map today" in str(found["b"])
    assert not any(isinstance(found[who], Exception) for who in "ac")


def test_shared_work_is_let_go(task):
    made = []
    with sharing(task), sharing(task):
        assert [shared(task, "x", lambda: made.append(1)) for _ in range(3)] == [None] * 3
    shared(task, "x", lambda: made.append(1))
    assert len(made) == 2


def test_samples_are_a_keyed_choice(task):
    ten, twenty = chosen(task, 10, 0), chosen(task, 20, 0)
    assert set(ten.tolist()) < set(twenty.tolist())
    assert ten.tolist() == sorted(ten.tolist())
    assert chosen(task, 10, 1).tolist() != ten.tolist()
    assert ten.tolist() != list(range(10))
    shuffled = task[torch.randperm(40, generator=torch.Generator().manual_seed(5))]
    assert set(some_of(shuffled, 10, 0).ids.tolist()) == set(task.ids[ten].tolist())
    assert some_of(task, 40, 0) is task


def test_a_set_sorted_by_class_is_audited_on_all_classes():
    labels = torch.arange(300) // 100
    task = vd.Task(nn.Linear(4, 3), torch.randn(300, 4), labels=labels)
    counts = torch.bincount(some_of(task, 60, 0).labels, minlength=3)
    assert counts.min() >= 10
    found = vd.audit(task, explainers=["saliency", "gradient"], effort="glance", samples=12)
    assert found.task.ids.tolist() == some_of(task, 12, 0).ids.tolist()


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


def test_the_noise_that_disrupts_is_read_off_the_path():
    path = NoisePath(
        (0.1,), 1.0, "", "isotonic", 0.5, searched=(0.2, 1.0), agreement=(0.9, 0.5), fitted=(0.9, 0.5)
    )
    assert where_agreement_falls(path, 0.7) == pytest.approx(0.6)
    assert where_agreement_falls(path, 0.95) == pytest.approx(0.1)
    assert where_agreement_falls(path, 0.4) is None


def test_a_glance_can_tell_what_metrics_are_worth(task):
    """Enough samples are disturbed so much that enough of them change, with two classes and with more."""
    two = vd.Task(nn.Linear(6, 2), torch.randn(24, 6, generator=torch.Generator().manual_seed(0)))
    assert enough_samples(two) == 20
    assert enough_samples(task) == 15
    for one in (two, task):
        found = vd.audit(one, explainers=["saliency", "input_x_gradient"], effort="glance")
        measured = [judge.reliability for judge in found.verdict.judges if judge.decides]
        assert all(value == value for value in measured), measured


def test_the_search_for_noise_is_counted(task):
    found = vd.audit(task, explainers=["saliency", "input_x_gradient"], effort="glance", samples=8)
    assert found.costs["noise"].forward > 8
