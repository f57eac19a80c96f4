"""Grades: 1 for the reference, 0 for noise, and intervals that hold the ratio."""

import itertools
import math

import pytest
import torch

import veridical as vd
from veridical.auditing.grade import BEST_ORDER, MEASURED, grade, reference_scores
from veridical.auditing.measured_effects import measured_effects
from veridical.core.key import Key
from veridical.explainers.controls import Random
from veridical.metrics import registry
from veridical.models.context import Context, Memo
from veridical.qge import QGE


def scores(seed, samples=64):
    dice = torch.Generator().manual_seed(seed)
    noise = 0.1 * torch.randn(samples, generator=dice, dtype=torch.float64)
    return noise, 1 + 0.5 * torch.rand(samples, generator=dice, dtype=torch.float64)


def test_the_reference_has_grade_one_and_noise_zero():
    noise, best = scores(0)
    one = grade(best, noise, best)
    assert (one.value, one.low, one.high) == pytest.approx((1, 1, 1))
    assert grade(noise, noise, best).value == pytest.approx(0)
    assert str(one) == "100% [100%, 100%]"


@pytest.mark.parametrize("factor", [-0.5, 0.3, 1.4])
def test_a_share_of_the_gain_is_the_grade_and_is_never_clipped(factor):
    noise, best = scores(1)
    found = grade(noise + factor * (best - noise), noise, best, name=BEST_ORDER)
    assert found.value == pytest.approx(factor)
    assert (found.low, found.high) == pytest.approx((factor, factor))
    assert found.reference == BEST_ORDER


def test_it_is_a_ratio_of_means_and_no_mean_of_ratios():
    noise, best = torch.zeros(2), torch.tensor([1.0, 3.0])
    assert grade(torch.tensor([1.0, 0.0]), noise, best).value == pytest.approx(0.25)


def test_no_grade_where_the_reference_is_not_better_than_noise():
    noise, _ = scores(2)
    found = grade(noise + 1, noise, noise.flip(0))
    assert math.isnan(found.value)
    assert str(found) == "-"
    assert math.isnan(grade(noise, noise, torch.full_like(noise, torch.nan)).value)
    # better in one sample of 64, so that a third of the draws do not see it
    assert math.isnan(grade(noise, noise, torch.where(torch.arange(64) == 3, noise + 1, noise)).value)


def test_a_missing_map_shows_as_much_as_noise():
    noise, best = scores(3)
    method = best.clone()
    method[:32] = torch.nan
    filled = torch.where(method.isnan(), noise, best)
    assert grade(method, noise, best) == grade(filled, noise, best)


def test_the_interval_holds_the_ratio_as_often_as_it_says():
    dice = torch.Generator().manual_seed(0)
    held = []
    for seed in range(300):
        best = 1 + torch.randn(64, generator=dice, dtype=torch.float64)
        noise = 0.3 * torch.randn(64, generator=dice, dtype=torch.float64)
        method = 0.7 * best + 0.5 * torch.randn(64, generator=dice, dtype=torch.float64)
        found = grade(method, noise, best, seed)  # the true ratio is .7
        held.append(found.low <= 0.7 <= found.high)
    assert 0.91 <= sum(held) / len(held) <= 0.98


# --- the reference ----------------------------------------------------------------------------------------


def effects_of(task, memo=None):
    return measured_effects(task, Context.begun(task.predictor, Key(0), memo))


@pytest.mark.parametrize("settings", [{}, {"steps": 2}])
def test_the_best_order_is_the_best_of_all(settings):
    metric = QGE(registry.make("pixel_flipping", **settings))
    task = vd.tasks.load("known/interactions", samples=4)
    task = task.with_space(vd.Space.column_groups([0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 4, 4]))
    found, name = reference_scores(task, effects_of(task), metric, 0)
    assert name == BEST_ORDER
    made = Random()(task, Key(0))
    every = [
        metric(task, made.along(torch.tensor(order).expand(4, -1)), Key(0)).values
        for order in itertools.permutations(range(5))
    ]
    torch.testing.assert_close(found, torch.stack(every).amax(0).double(), rtol=1e-6, atol=1e-7)


def test_many_features_take_the_order_of_the_effects():
    metric = QGE(registry.make("pixel_flipping", steps=8))
    task = vd.tasks.load("breast_cancer_logistic", samples=6)
    effects = effects_of(task)
    found, name = reference_scores(task, effects, metric, 0)
    assert name == MEASURED
    made = Random()(task, Key(0)).with_values(effects.values)
    torch.testing.assert_close(found, metric(task, made, Key(0)).values.double())


def test_noise_shows_nothing_in_expectation():
    """QGE sets an order against its reverse, and of random orders both are as likely."""
    metric, memo = QGE(registry.make("pixel_flipping")), Memo()
    task = vd.tasks.load("known/linear", samples=12)
    draws = torch.stack(
        [metric(task, Random()(task, Key(i)), Key(0), memo).values for i in range(60)]
    ).double()
    best, name = reference_scores(task, effects_of(task, memo), metric, 0, memo)
    assert name == BEST_ORDER
    grades = [grade(draw, torch.zeros(12), best).value for draw in draws]
    mean, spread = torch.tensor(grades).mean(), torch.tensor(grades).std() / 60**0.5
    assert abs(float(mean)) < 3 * float(spread)
