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
from veridical.models.context import Memo
from veridical.perturb.near_rows import near_rows
from veridical.testing import tiny_task
from veridical.values.task import Task

close = torch.testing.assert_close
TRAIN = torch.randn(40, 12, generator=generator(8), dtype=torch.float64)
FEW = torch.randn(40, 6, generator=generator(8), dtype=torch.float64)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("settings", [{}, {"step": 0.7, "neighbours": 3, "response": "probability"}])
def test_as_its_slow_rewrite(settings, tied):
    task = crooked_task(features=6, train=FEW)
    metric, values = NearRemoval(**settings), random_map(task).values
    if tied:  # equal sizes tie, whatever their signs
        values = torch.stack([*values[:, :3].T, -values[:, 1], values[:, 1], values[:, 0]], 1)
    own = {name: value for name, value in settings.items() if name != "response"}

    def reference(values):
        return [
            slow.near_removal(
                asker(task, i, metric.response), vector(task, i), values[i].numpy(), FEW.numpy(), **own
            )
            for i in range(len(task))
        ]

    got = metric(task, explained(task, values)).values.numpy()
    np.testing.assert_allclose(got, reference(values), atol=1e-7)
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(got, reference(1 / values), atol=1e-7)


def test_on_a_linear_model_effects_are_weights_times_steps():
    task = linear_task(train=TRAIN)
    exact, metric = explained(task, weights_of(task)), NearRemoval()
    effects = weights_of(task).abs() * (near_rows(task) - task.inputs[:, None]).abs().mean(1)
    close(metric.effects(task), effects, atol=1e-7, rtol=0)
    order = exact.values.abs().argsort(-1, descending=True)
    shares = effects.gather(-1, order).cumsum(-1) / effects.sum(-1, keepdim=True)
    close(metric(task, exact).values, shares.mean(-1), atol=1e-7, rtol=0)
    # the share of all features is 1, that of none is not counted, and equal ones are met in the mean
    flat = explained(task, torch.ones(len(task), 12))
    close(metric(task, flat).values, torch.full((len(task),), 13 / 24, dtype=torch.float64))
    # half a step moves the response half as far, and the shares stay
    close(NearRemoval(step=0.1)(task, exact).values, shares.mean(-1), atol=1e-6, rtol=0)
    best = explained(task, effects)
    for other in (exact, random_map(task), explained(task, -1 / effects)):
        assert (metric(task, other).values <= metric(task, best).values + 1e-9).all()


def test_what_is_taken_whole_is_left_out():
    kinds = TRAIN.clone()
    kinds[:, 7:] = (kinds[:, 7:] > 0).double()
    task = linear_task(train=kinds)
    explanation, metric = random_map(task), NearRemoval()
    moved = explanation.values.clone()
    moved[:, 7:] = moved[:, 7:].flip(-1) * 100
    close(metric(task, explanation).values, metric(task, explained(task, moved)).values, atol=0, rtol=0)
    # two small moves are too few to rank
    kinds[:, 2:] = (kinds[:, 2:] > 0).double()
    scores = metric(linear_task(train=kinds), explanation)
    assert scores.values.isnan().all()
    assert any(flag.all() for reason, flag in scores.flags.items() if "moved a little" in reason)


def test_all_maps_of_a_call_share_the_effects():
    task, memo = crooked_task(train=TRAIN), Memo()
    first, second = (NearRemoval()(task, random_map(task, seed), memo=memo) for seed in (3, 4))
    assert first.cost.rows == 4 * 8 * 12
    assert second.cost.rows == 0
    close(second.values, NearRemoval()(task, random_map(task, 4)).values, atol=0, rtol=0)


def test_where_nothing_moves_the_response_there_is_no_score():
    task = Task(lambda x: torch.zeros(len(x), 2).double(), TRAIN[:3], train=TRAIN, targets=0)
    scores = NearRemoval()(task, explained(task, TRAIN[:3]))
    assert scores.values.isnan().all()
    assert all(flag.all() for reason, flag in scores.flags.items() if "no near effect" in reason)


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
