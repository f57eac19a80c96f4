"""Input invariance: closed forms on linear models, the compensated model."""

import pytest
import torch

import veridical as vd
from tests.reference import metrics as robustness
from tests.reference.metric_cases import image_task, linear_task, mlp_task, text_task
from veridical.explainers import IntegratedGradients
from veridical.metrics.axiomatic.input_invariance import shifted


def test_the_compensated_model_answers_alike() -> None:
    task = mlp_task()
    twin = shifted(task, 3.0, True)
    torch.testing.assert_close(twin.outputs, task.outputs)
    torch.testing.assert_close(twin.inputs, task.inputs + 3.0)
    assert torch.equal(twin.targets, task.targets)


def assert_closed_form(shift: float) -> None:
    """Input x gradient of a linear model is w x before and w (x + s) after."""
    task = linear_task()
    weights = task.model.weight.detach()[task.targets]
    expected = []
    for x, w in zip(task.inputs, weights, strict=True):
        before, after = robustness.rms(w * x), robustness.rms(w * (x + shift))
        expected.append(robustness.norm(before - after) / robustness.norm(before))
    got = vd.score("input_invariance", task, "input_x_gradient", shift=2.0).values
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-12)


def test_closed_form_of_input_x_gradient() -> None:
    assert_closed_form(2.0)
    with pytest.raises(AssertionError):
        assert_closed_form(-2.0)


@pytest.mark.parametrize("make", [mlp_task, image_task, text_task])
def test_the_gradient_does_not_see_a_compensated_shift(make) -> None:
    assert vd.score("input_invariance", make(), "gradient").values.max() < 1e-9
    moved = vd.score("input_invariance", make(), "gradient", compensate=False).values
    assert (moved > 1e-3).all()


def test_a_baseline_at_zero_fails_and_one_at_the_mean_does_not() -> None:
    train = mlp_task(rows=20).inputs
    task = mlp_task(train=train)
    assert (vd.score("input_invariance", task, "integrated_gradients").values > 1e-3).all()
    at_mean = IntegratedGradients(baseline="mean")
    assert vd.score("input_invariance", task, at_mean).values.max() < 1e-9
    occlusion = vd.score("input_invariance", task, "occlusion").values  # its fill comes from the shifted rows
    assert occlusion.max() < 1e-6


def test_counts_and_settings() -> None:
    task = image_task(rows=11)
    scores = vd.score("input_invariance", task, "input_x_gradient")
    assert (scores.cost.forward, scores.cost.backward) == (22, 22)
    with pytest.raises(vd.errors.InputError, match="shift"):
        vd.score("input_invariance", task, "gradient", shift=0.0)


def test_integers_are_refused_with_advice() -> None:
    task = vd.Task(lambda x: x.float().flatten(1)[:, :3], torch.ones(2, 1, 4, 4, dtype=torch.uint8))
    with pytest.raises(vd.errors.NotApplicableError, match=r"inputs\.float\(\)"):
        vd.score("input_invariance", task, "random")
