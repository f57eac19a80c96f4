"""Feature ablation: closed forms, spaces and models without gradients."""

import numpy as np
import torch
from torch import nn

from veridical.core.key import Key
from veridical.explainers import FeatureAblation, Occlusion
from veridical.perturb.fills import Constant, Marginal
from veridical.values.space import Space
from veridical.values.task import Task


def is_leave_one_out(values: torch.Tensor, model: nn.Linear, x: torch.Tensor, fill: float, targets) -> bool:
    return torch.allclose(values, (x - fill) * model.weight[targets].detach(), atol=1e-6)


def test_linear_model_gives_its_terms():
    torch.manual_seed(0)
    model, x = nn.Linear(6, 3), torch.randn(5, 6)
    task = Task(model, x, fill=Constant(0.25))
    found = FeatureAblation()(task, Key(0))
    assert is_leave_one_out(found.values, model, x, 0.25, task.targets)
    assert not is_leave_one_out(-found.values, model, x, 0.25, task.targets)
    assert found.cost.forward == 5 * 6


def test_equals_occlusion_where_that_removes_features_alone():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 4)).double()
    task = Task(model, torch.rand(3, 1, 8, 8).double(), space=Space.patches((1, 8, 8), 2))
    assert torch.allclose(FeatureAblation()(task).values, Occlusion()(task).values)


def test_superpixels_and_marginal_fill_on_a_function_of_arrays():
    def rows(x: np.ndarray) -> np.ndarray:
        return np.stack([x[:, 0] * x[:, 1], -x[:, 2]], 1)

    rng = np.random.default_rng(0)
    x, train = rng.normal(size=(4, 3)), rng.normal(size=(50, 3))
    task = Task(rows, x, train=train, fill=Marginal(3), targets=[0, 0, 1, 1])
    found = FeatureAblation()(task, Key(0))
    assert (found.values[:2, 2] == 0).all()
    assert (found.values[2:, :2] == 0).all()
    assert (found.values[:2, :2] != 0).all()
    labels = torch.tensor([[[0, 0, 1], [2, 1, 1]], [[0, 1, 1], [1, 1, 1]]])
    image = Task(
        nn.Sequential(nn.Flatten(), nn.Linear(6, 2)),
        torch.rand(2, 1, 2, 3),
        fill=0.0,
        space=Space.superpixels((1, 2, 3), labels),
    )
    values = FeatureAblation()(image, Key(0)).values
    weight = image.predictor.model[1].weight[image.targets].detach().reshape(2, 1, 2, 3)
    assert torch.allclose(values, image.space.pool(weight * image.inputs), atol=1e-6)
