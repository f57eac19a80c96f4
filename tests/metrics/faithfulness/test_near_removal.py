"""Near removal: its slow rewrite, its closed form on a linear model, what of a map it reads."""

import numpy as np
import pytest
import torch
from torch import nn

from tests.metrics.faithfulness.cases import (
    asker,
    crooked_task,
    explained,
    generator,
    linear_task,
    random_map,
    vector,
    weights_of,
)
from tests.reference import faithfulness as slow
from veridical.metrics import NearRemoval
from veridical.perturb.near_rows import near_rows
from veridical.testing import tiny_task
from veridical.values.task import Task

close = torch.testing.assert_close
TRAIN = torch.randn(40, 12, generator=generator(8), dtype=torch.float64)


@pytest.mark.parametrize("settings", [{}, {"step": 0.7, "neighbours": 3, "response": "probability"}])
def test_as_its_slow_rewrite(settings):
    task = crooked_task(train=TRAIN)
    explanation, metric = random_map(task), NearRemoval(**settings)
    own = {name: value for name, value in settings.items() if name != "response"}

    def reference(values):
        return [
            slow.near_removal(
                asker(task, i, metric.response), vector(task, i), values[i].numpy(), TRAIN.numpy(), **own
            )
            for i in range(len(task))
        ]

    got = metric(task, explanation).values.numpy()
    np.testing.assert_allclose(got, reference(explanation.values), atol=1e-7)
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(got, reference(-1 / explanation.values), atol=1e-7)


def test_on_a_linear_model_changes_are_sums_of_steps():
    task = linear_task(train=TRAIN)
    exact = explained(task, weights_of(task))
    order = exact.values.abs().argsort(-1, descending=True)
    moves = near_rows(task) - task.inputs[:, None]
    shares = (moves * weights_of(task)[:, None]).gather(-1, order[:, None].expand_as(moves))
    want = shares.cumsum(-1).abs().mean(1)
    scores = NearRemoval()(task, exact)
    close(scores.values, want.mean(-1), atol=1e-7, rtol=0)
    close(scores.curve.y, want, atol=1e-7, rtol=0)
    close(NearRemoval(steps=1)(task, exact).values, want[:, -1], atol=1e-7, rtol=0)
    # half a step moves the response half as far
    close(NearRemoval(step=0.1)(task, exact).values, scores.values / 2, atol=1e-7, rtol=0)


def test_the_size_of_relevance_ranks_and_equal_sizes_are_averaged():
    task = crooked_task(train=TRAIN)
    explanation, metric = random_map(task), NearRemoval()
    signs = torch.where(torch.arange(12) % 3 == 0, -1.0, 1.0)
    close(metric(task, explanation).values, metric(task, explained(task, explanation.values * signs)).values)
    tied = explanation.values.clone()
    tied[:, 1] = -tied[:, 0]
    ways = []
    for more in (1 + 1e-9, 1 - 1e-9):
        broken = tied.clone()
        broken[:, 1] *= more
        ways.append(metric(task, explained(task, broken)).values)
    close(metric(task, explained(task, tied)).values, (ways[0] + ways[1]) / 2, atol=1e-9, rtol=0)


def test_a_true_map_beats_its_own_reverse():
    task = linear_task(samples=30, train=TRAIN)
    metric, exact = NearRemoval(), explained(task, weights_of(task))
    reverse = explained(task, 1 / weights_of(task))
    assert (metric(task, exact).values > metric(task, reverse).values).double().mean() > 0.95


def test_a_rule_off_the_data_has_no_part_in_the_score():
    """Whatever the model answers to rows far from its data, the score is the same."""

    class TwoRules(nn.Module):
        def __init__(self, other):
            super().__init__()
            self.other = other

        def forward(self, x):
            near = torch.cdist(x, torch.cat([TRAIN, inputs])).amin(1) < 4
            answer = torch.where(near, x[:, 0], self.other * x[:, 1])
            return torch.stack([answer, -answer], 1)

    inputs = torch.randn(5, 12, generator=generator(9), dtype=torch.float64)
    scores = []
    for other in (3.0, -50.0):
        task = Task(TwoRules(other), inputs, targets=0, train=TRAIN)
        scores.append(NearRemoval()(task, random_map(task)).values)
    close(*scores, atol=0, rtol=0)


def test_who_is_refused():
    metric = NearRemoval()
    assert "reference rows" in str(metric.inapplicable_reason(crooked_task()))
    assert "too few" in str(metric.inapplicable_reason(crooked_task(train=TRAIN[:8])))
    assert "series" in str(metric.inapplicable_reason(tiny_task("series")))
    assert metric.inapplicable_reason(tiny_task("table")) is None
