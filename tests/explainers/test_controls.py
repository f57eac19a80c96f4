"""Controls: what they say, and that they read nothing of the model."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import ndimage
from torch import Tensor, nn

import veridical as vd
from tests.reference.small_nets import conv_net, draw, image_task, seeded, series_task
from veridical.errors import InputError, NotApplicableError
from veridical.explainers import Constant, Random, RandomK, Sobel
from veridical.explainers.controls import MovingNoise
from veridical.explainers.transforms import OtherClass
from veridical.models.predictor import Plan
from veridical.perturb.fills import NoisyLinear

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


def magnitudes(x, fill, train):
    """Element by element, as the definition reads."""
    out = np.zeros(x.shape)
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            sd = np.std(train[:, j])
            out[i, j] = abs(x[i, j] - fill[j]) / (sd if sd > 0 else 1.0)
    return out


def test_magnitude_agrees_with_a_slow_rewrite():
    rng = np.random.default_rng(0)
    x, train = rng.normal(size=(5, 4)), rng.normal(size=(9, 4)) * [1.0, 3.0, 0.0, 0.1]
    task = vd.Task(nn.Linear(4, 2), torch.tensor(x), train=torch.tensor(train), fill="mean")
    found = vd.explain("input_magnitude", task)
    np.testing.assert_allclose(found.values, magnitudes(x, train.mean(0), train), rtol=1e-5)
    assert found.cost == vd.models.Cost(0, 0)
    # the mean over rows stands for a fill by many rows
    marginal = vd.explain("input_magnitude", task.with_fill(vd.fills.Marginal()))
    torch.testing.assert_close(marginal.values, found.values, rtol=1e-5, atol=1e-6)


def test_magnitude_sums_over_what_a_feature_holds():
    task = vd.Task(
        nn.Sequential(nn.Flatten(), nn.Linear(12, 2)), torch.arange(24.0).reshape(2, 3, 2, 2), fill=0.0
    )
    torch.testing.assert_close(
        vd.explain("input_magnitude", task).values, task.inputs.sum(1).flatten(1).double()
    )


def test_rarity_of_tokens():
    train = torch.tensor([[0, 0, 0, 1], [0, 0, 1, 2]])
    model = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(12, 2))
    task = vd.Task(model, torch.tensor([[0, 1, 2, 4]]), train=train, space=vd.Space.tokens(4))
    expected = [-math.log((count + 1) / 9) for count in (5, 2, 1, 0)]
    np.testing.assert_allclose(vd.explain("input_magnitude", task).values[0], expected)
    alone = vd.Task(model, torch.tensor([[0, 1, 2, 4]]), space=vd.Space.tokens(4))
    assert vd.explain("input_magnitude", alone).values[0].tolist() == [0, 1, 2, 4]


def test_a_fill_that_looks_at_the_mask_counts_from_the_mean():
    task = image_task()
    train = task.inputs.repeat(2, 1, 1, 1)
    with_train = vd.Task(task.model, task.inputs, train=train, fill=NoisyLinear())
    expected = (task.inputs - train.mean(0)).abs() / train.std(0, correction=0)
    torch.testing.assert_close(
        vd.explain("input_magnitude", with_train).values, expected.sum(1).flatten(1).double()
    )


def test_moving_noise_is_affine_in_the_outputs_that_a_task_knows():
    task = image_task()
    clean, noisy = task, task.with_noise(0.3, vd.core.Key(1))
    a, b = (vd.explain("moving_noise", world) for world in (clean, noisy))
    assert a.cost.forward == 0 == MovingNoise()._declared(task).forward
    moved = (b.values - a.values).double()
    change = (noisy.outputs - clean.outputs).double()
    # what moves lies in the span of as many directions as there are outputs, the same for all samples
    fitted = torch.linalg.lstsq(change, moved).solution
    torch.testing.assert_close(change @ fitted, moved, rtol=1e-4, atol=1e-4)
    assert float(moved.abs().max()) > 0
    assert torch.equal(vd.explain("moving_noise", task, seed=3).values, a.values)
    torch.testing.assert_close(vd.explain("moving_noise", task[2:3]).values, a.values[2:3])


def test_other_class_is_the_map_of_the_runner_up():
    weight = torch.tensor([[1.0, 0.0], [0.0, 2.0], [-1.0, 1.0]])
    model = nn.Linear(2, 3, bias=False)
    with torch.no_grad():
        model.weight.copy_(weight)
    task = vd.Task(model, torch.tensor([[3.0, 1.0], [1.0, 3.0]]))
    assert task.targets.tolist() == [0, 1]
    found = vd.explain("other_class:gradient", task)
    assert found.values.tolist() == [weight[1].tolist(), weight[2].tolist()]
    assert found.targets.tolist() == [0, 1]
    one = vd.Task(nn.Linear(2, 1), torch.ones(2, 2), head="regression")
    with pytest.raises(NotApplicableError, match="no other class"):
        OtherClass("gradient").check(one)


def test_a_row_has_the_random_map_of_its_own_in_whatever_task_it_is() -> None:
    model, rows = torch.nn.Linear(4, 3), torch.rand(2, 4)
    alone = [vd.explain("random", vd.Task(model, rows[[n]])).values for n in range(2)]
    assert not torch.equal(*alone)
    assert torch.equal(torch.cat(alone), vd.explain("random", vd.Task(model, rows)).values)
