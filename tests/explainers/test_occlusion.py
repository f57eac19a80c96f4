"""What explainers by masks share, and feature ablation: closed forms, pieces, NaN refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import veridical as vd
from veridical.core.key import Key
from veridical.core.space import Space
from veridical.errors import ModelError
from veridical.explainers import FeatureAblation, KernelShap, Lime, Occlusion
from veridical.perturb.fills import Constant, Marginal
from veridical.values.task import Task


@pytest.mark.parametrize("name", ["lime", "kernel_shap", "rise", "feature_ablation"])
def test_an_answer_that_is_not_finite_is_refused(name: str) -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        return torch.where(x.flatten(1).sum(-1, keepdim=True) > 8.5, x.flatten(1)[:, :3], torch.nan)

    task = vd.Task(broken, torch.ones(2, 1, 3, 3), fill=0.0)
    with pytest.raises(ModelError, match="NaN or infinity"):
        vd.explain(name, task)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("explainer", [Lime(draws=90), KernelShap(budget=181)])
def test_a_gpu_gives_the_maps_of_a_cpu(explainer) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(100, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).double()
    task = vd.Task(model, torch.randn(3, 100).double(), fill=0.0)
    expected, found = (vd.explain(explainer, each).values.cpu() for each in (task, task.to("cuda")))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6 * float(expected.abs().max()))


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
