"""Controls: what they say, and that they read nothing of the model."""

import numpy as np
import pytest
import torch
from scipy import ndimage
from torch import Tensor, nn

import veridical as vd
from tests.reference.small_nets import conv_net, draw, image_task, seeded, series_task
from veridical.errors import InputError
from veridical.explainers import Constant, Random, RandomK, Sobel
from veridical.models.predictor import Plan

KEY = vd.core.Key(6)


def padded_task() -> vd.Task:
    space = vd.Space.steps((1, 9), lengths=torch.tensor([9, 3, 6]))
    net = seeded(nn.Sequential(nn.Flatten(), nn.Linear(9, 3)))
    return vd.Task(net, draw(3, 1, 9), space=space, plan=Plan(rows=8))


@pytest.mark.parametrize("k", [1, 5, 64, 100])
def test_random_k_marks_k_features(k: int) -> None:
    task = image_task()
    values = RandomK(k)(task, KEY).values
    assert set(values.unique().tolist()) <= {0.0, 1.0}
    assert values.sum(1).tolist() == [min(k, 64)] * 6


def test_random_k_is_uniform_keyed_and_marks_features_that_exist() -> None:
    task = padded_task()
    values = RandomK(4)(task, KEY).values
    assert values.sum(1).tolist() == [4, 3, 4]
    assert bool((values[~task.space.valid] == 0).all())
    assert torch.equal(RandomK(4)(task[1:2], KEY).values, values[1:2])
    share = torch.stack([RandomK(4)(task, vd.core.Key(seed)).values for seed in range(600)]).mean(0)
    np.testing.assert_allclose(share[0], 4 / 9, atol=0.08)
    np.testing.assert_allclose(share[2, :6], 4 / 6, atol=0.08)
    with pytest.raises(InputError, match="k is a whole number from 1"):
        RandomK(0)


def test_constant() -> None:
    values = Constant()(padded_task()).values
    assert values.sum(1).tolist() == [9, 3, 6]
    assert set(values.unique().tolist()) == {0.0, 1.0}


def sobel_by_scipy(x: Tensor) -> Tensor:
    out = []
    for image in x.mean(1).numpy():
        across, down = (ndimage.sobel(image, axis=axis, mode="nearest") for axis in (1, 0))
        out.append(np.hypot(across, down))
    return torch.as_tensor(np.stack(out)).flatten(1)


def test_sobel_agrees_with_scipy() -> None:
    task = image_task()
    found = Sobel()(task).values
    torch.testing.assert_close(found, sobel_by_scipy(task.inputs), rtol=0, atol=1e-12)
    # one direction alone is not enough
    across = torch.as_tensor(ndimage.sobel(task.inputs.mean(1).numpy(), axis=2, mode="nearest"))
    assert not torch.allclose(found, across.abs().flatten(1))
    torch.testing.assert_close(Sobel()(image_task(conv_net(pool=nn.MaxPool2d))).values, found)


def test_sobel_of_a_series_is_its_steps() -> None:
    task = series_task()
    found = Sobel()(task).values
    expected = torch.zeros(4, 12, dtype=torch.float64)
    for t in range(1, 12):
        expected[:, t] = (task.inputs[:, :, t] - task.inputs[:, :, t - 1]).abs().mean(1)
    torch.testing.assert_close(found, expected)
    net = seeded(nn.Sequential(nn.Flatten(), nn.Linear(24, 3)))
    space = vd.Space.steps((12, 2), time_axis=0)
    turned = vd.Task(net, task.inputs.transpose(1, 2), space=space, plan=Plan(rows=8))
    torch.testing.assert_close(Sobel()(turned).values, expected)


@pytest.mark.parametrize("control", [Random(), RandomK(), Constant(), Sobel()])
def test_controls_never_ask_the_model(control: vd.Explainer) -> None:
    task = image_task()
    explanation = control(task, KEY)
    assert control.control
    assert explanation.cost == vd.models.Cost(0, 0)
    noisy = control(task.with_noise(0.5, vd.core.Key(1)), KEY)
    assert torch.equal(noisy.values, explanation.values)
