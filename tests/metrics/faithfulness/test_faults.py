"""Faults known from other implementations, and the flags that take the place of a silent number."""

import pytest
import torch
from torch import nn

from tests.metrics.faithfulness.cases import (
    crooked_task,
    explained,
    image_task,
    linear_task,
    random_map,
    text_task,
    weights_of,
)
from veridical.core.key import Key
from veridical.errors import InputError, NotApplicableError
from veridical.metrics import (
    Comprehensiveness,
    FaithfulnessCorrelation,
    FaithfulnessEstimate,
    Infidelity,
    Irof,
    Monotonicity,
    MonotonicityCorrelation,
    PixelFlipping,
    RegionPerturbation,
    Road,
    SensitivityN,
)
from veridical.metrics.base import CONSTANT
from veridical.perturb.fills import NoisyLinear, UniformNoise
from veridical.values.task import Task


class Deaf(nn.Module):
    """Answers the same to everything."""

    def forward(self, x):
        return x.flatten(1)[:, :3] * 0 + torch.tensor([1.0, 0.0, 0.5], dtype=x.dtype)


def deaf_task():
    return Task(Deaf(), image_task().inputs, fill=0.0)


def test_sensitivity_n_is_not_a_cumulative_drop_against_a_single_relevance():
    """With exact attributions of unequal size a cumulative drop would not correlate perfectly."""
    task = linear_task(features=30)
    exact = explained(task, task.inputs * weights_of(task))
    scores = SensitivityN(draws=10, response="logit")(task, exact)
    assert (scores.values > 1 - 1e-6).all()
    assert (scores.curve.y > 1 - 1e-6).all()


def test_monotonicity_is_not_one_for_every_map():
    task = crooked_task(samples=20)
    scores = Monotonicity()(task, random_map(task))
    assert scores.mean() < 0.5
    assert scores.details["rising"].unique().numel() > 3


def test_a_uniform_fill_is_not_one_number_a_sample():
    task = image_task()
    background = UniformNoise().background(None, task.inputs, task.draw_ids, Key(0))
    assert all(row.unique().numel() == 36 for row in background)


def test_another_seed_draws_other_subsets_and_the_same_seed_the_same():
    task = crooked_task()
    explanation = random_map(task)
    metric = FaithfulnessCorrelation(runs=10)
    a, b, c = (metric(task, explanation, Key(seed)).values for seed in (0, 0, 1))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    # two samples share their draws only if they are equal, and then in any task
    rows = torch.cat([task.inputs[:1], task.inputs[:1], task.inputs[:1] + 1e-3])
    same = Task(task.predictor.model, rows, fill=0.0)
    first, second, other = metric(same, explained(same, explanation.values[:1].repeat(3, 1))).values.tolist()
    assert first == second != other


@pytest.mark.parametrize(
    "metric",
    [
        FaithfulnessCorrelation(runs=5),
        FaithfulnessEstimate(),
        MonotonicityCorrelation(),
        SensitivityN(draws=5),
    ],
    ids=lambda m: m.name,
)
def test_a_correlation_without_spread_is_flagged_nan(metric):
    task = deaf_task()
    scores = metric(task, random_map(task))
    assert scores.values.isnan().all()
    assert sum(scores.flagged.values()) >= 3
    task = image_task()
    scores = metric(task, explained(task, torch.ones(3, 36)))
    assert scores.values.isnan().all()


def test_a_response_that_never_moves_is_not_monotone():
    task = deaf_task()
    scores = Monotonicity()(task, random_map(task))
    assert scores.values.isnan().all()
    assert scores.flagged == {"the response never moves": 3}


def test_a_zero_map_is_not_a_perfect_predictor_of_a_deaf_model():
    task = deaf_task()
    scores = Infidelity(draws=5)(task, explained(task, torch.zeros(3, 36)))
    assert scores.values.isnan().all()
    silent = Infidelity(draws=5)(image_task(), explained(image_task(), torch.zeros(3, 36)))
    assert silent.flagged == {"map is zero under every perturbation": 3, CONSTANT: 3}


def test_a_constant_map_is_flagged_where_it_is_ranked():
    task = image_task()
    flat = explained(task, torch.ones(3, 36))
    for metric in (PixelFlipping(), RegionPerturbation(patch=3), Irof(segments=4), Road()):
        assert metric(task, flat).flagged[CONSTANT] == 3, metric.name


def test_steps_that_change_nothing_tie_exactly():
    """Black pixels under a black fill: the curve is flat there to the last bit."""
    task = image_task()
    x = task.inputs.clone()
    x[:, :, :3] = 0
    task = Task(task.predictor.model, x, fill=0.0)
    order = torch.arange(36.0).flip(0).repeat(3, 1)
    curve = PixelFlipping()(task, explained(task, order)).curve.y
    assert (curve[:, :19] == curve[:, :1]).all()
    assert (curve[:, 19:].diff(dim=-1) != 0).all()


def test_refusals_say_what_would_do():
    with pytest.raises(NotApplicableError, match="contribution"):
        Infidelity()(text_task(), random_map(text_task()))
    assert (
        Infidelity(draws=5, units="contribution")(text_task(), random_map(text_task()))
        .values.isfinite()
        .all()
    )
    with pytest.raises(NotApplicableError, match="depend on the mask"):
        Infidelity(fill=NoisyLinear())(image_task(), random_map(image_task()))
    with pytest.raises(NotApplicableError, match="image"):
        Road()(crooked_task(), random_map(crooked_task()))
    for wrong in (
        lambda: PixelFlipping(steps=0),
        lambda: PixelFlipping(steps=2, per_step=2),
        lambda: PixelFlipping(order="first"),
        lambda: FaithfulnessCorrelation(runs=2),
        lambda: SensitivityN(shares=(0.0,)),
        lambda: Infidelity(scaling="captum"),
        lambda: Infidelity(perturbation="noise", units="contribution"),
        lambda: Road(shares=(1.0,)),
        lambda: Comprehensiveness(bins=()),
        lambda: Irof(segments=1),
    ):
        with pytest.raises(InputError):
            wrong()
