"""Controls that look at the input or the outputs: what they say, against slow rewrites and closed forms."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import veridical as vd
from tests.reference.small_nets import image_task
from veridical.errors import NotApplicableError
from veridical.explainers.controls import InputMagnitude, MovingNoise
from veridical.explainers.transforms import OtherClass, explainer_from_json
from veridical.perturb.fills import NeighbourMean


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
    with_train = vd.Task(task.model, task.inputs, train=train, fill=NeighbourMean())
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


def test_other_class_survives_json():
    made = OtherClass("gradient")
    assert explainer_from_json(made.to_json()) == made


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_magnitude_of_odd_numbers(dtype):
    task = vd.Task(nn.Linear(1, 2).to(dtype), torch.full((3, 1), 2.0, dtype=dtype), fill=0.0)
    assert vd.explain(InputMagnitude(), task).values.flatten().tolist() == [2.0, 2.0, 2.0]
