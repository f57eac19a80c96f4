"""GradientSHAP and expected gradients: closed forms on a linear model, a slow rewrite, keyed draws."""

import pytest
import torch
from torch import Tensor, nn

import veridical as vd
from tests.reference import explainers as slow
from tests.reference.small_nets import draw, image_task, linear_task, seeded
from veridical.core import key as keyed
from veridical.errors import InputError, NotApplicableError
from veridical.explainers import ExpectedGradients, GradientShap, IntegratedGradients
from veridical.models.predictor import Plan

KEY = vd.core.Key(8)
BOTH = (GradientShap, ExpectedGradients)


@pytest.mark.parametrize("kind", BOTH)
def test_linear_model_has_a_closed_form(kind: type[vd.Explainer]) -> None:
    task, weights = linear_task()
    rows = keyed.integers(KEY / kind.name / "baseline", task.draw_ids, torch.arange(6), 1, len(task.train))[
        ..., 0
    ]
    expected = (task.inputs - task.train[rows].mean(1)) * weights
    found = kind(samples=6)(task, KEY).values

    def right(maps: Tensor) -> bool:
        return torch.allclose(maps, expected, rtol=0, atol=1e-12)

    assert right(found)
    # the mean of all reference rows, or no baseline at all, is another answer
    assert not right((task.inputs - task.train.mean(0)) * weights)
    assert not right(task.inputs * weights)


def test_without_reference_rows_the_baseline_is_zero() -> None:
    task, weights = linear_task(train=0)
    found = GradientShap(samples=3)(task, KEY).values
    torch.testing.assert_close(found, task.inputs * weights, rtol=0, atol=1e-12)
    with pytest.raises(NotApplicableError, match="reference rows"):
        ExpectedGradients()(task)


@pytest.mark.parametrize(
    ("explainer", "share"),
    [(GradientShap(samples=5), 0.0), (GradientShap(samples=5, noise=0.1), 0.1), (ExpectedGradients(5), 0.0)],
)
def test_agrees_with_a_slow_rewrite(explainer: vd.Explainer, share: float) -> None:
    task = image_task(samples=3)
    expected = task.values(slow.from_baselines(task, KEY / explainer.name, 5, share))
    torch.testing.assert_close(explainer(task, KEY).values, expected, rtol=0, atol=1e-9)
    fewer = task.values(slow.from_baselines(task, KEY / explainer.name, 4, share))
    assert not torch.allclose(explainer(task, KEY).values, fewer)


def test_tends_to_integrated_gradients_from_one_row() -> None:
    net = seeded(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)))
    task = vd.Task(net, draw(3, 4), train=torch.zeros(1, 4, dtype=torch.float64), plan=Plan(rows=512))
    exact = IntegratedGradients(steps=32)(task).values
    found = ExpectedGradients(samples=8000)(task, KEY).values
    assert float((found - exact).abs().max()) < 0.02


@pytest.mark.parametrize("kind", BOTH)
def test_wrong_settings_are_refused(kind: type[vd.Explainer]) -> None:
    with pytest.raises(InputError):
        kind(samples=0)
    with pytest.raises(InputError):
        GradientShap(noise=-1)
