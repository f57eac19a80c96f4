"""RISE: what its masks are, what it estimates, and a slow rewrite."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from veridical.core.key import Key
from veridical.errors import InputError
from veridical.explainers import Rise
from veridical.explainers.rise import _SmoothMasks
from veridical.models.predictor import Plan
from veridical.perturb.fills import Blur, Custom
from veridical.values.space import Space
from veridical.values.task import Task


def masks_for(draws: int = 6, grid: int = 3, size=(10, 8)) -> _SmoothMasks:
    return _SmoothMasks(Key(0), torch.arange(2), size, draws, 0.5, grid)


def test_smooth_masks_are_unbiased_and_within_bounds():
    shown = masks_for(4000).shown(slice(0, 1), slice(0, 4000))
    assert float(shown.min()) >= 0
    assert float(shown.max()) <= 1
    assert torch.allclose(shown.mean(1), torch.tensor(0.5), atol=0.04)


def test_masks_without_shift_are_bilinear_upsampling():
    masks = masks_for(1, grid=4, size=(12, 12))
    weights = masks._weights(torch.zeros(1, 1), 12)[0, 0]
    torch.manual_seed(0)
    coins = torch.rand(5, 5)
    ours = weights @ coins @ weights.mT
    cut = F.interpolate(coins[None, None], size=(15, 15), mode="bilinear", align_corners=False)[
        0, 0, :12, :12
    ]
    assert torch.allclose(ours, cut, atol=1e-6)


def slow_rise(task: Task, settings: Rise, i: int) -> torch.Tensor:
    masks = _SmoothMasks(
        Key(7) / "rise" / "masks", task.draw_ids[[i]], (8, 8), settings.draws, settings.keep, settings.grid
    )
    shown = masks.shown(slice(0, 1), slice(0, settings.draws))[0].double()
    y = torch.stack(
        [task.predictor.model(task.inputs[[i]] * m.reshape(1, 1, 8, 8))[0, task.targets[i]] for m in shown]
    ).detach()
    total = sum((y[m] - y.mean()) * shown[m] for m in range(settings.draws))
    return y.mean() + total / ((settings.draws - 1) * settings.keep)


def test_equals_the_slow_rewrite_in_any_chunks():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 3)).double()
    task = Task(model, torch.rand(3, 1, 8, 8).double())
    settings = Rise(20, grid=3)
    found = settings(task, Key(7))
    assert torch.allclose(
        found.values, torch.stack([slow_rise(task, settings, i) for i in range(3)]), atol=1e-6
    )
    assert torch.allclose(found.values, settings(task.with_plan(Plan(rows=8)), Key(7)).values, atol=1e-9)
    assert found.cost.forward == 60


def test_a_constant_model_gets_a_constant_map():
    class Constant(nn.Module):
        def forward(self, x):
            return x.flatten(1)[:, :2] * 0 + torch.tensor([5.0, 1.0])

    for inputs in (torch.rand(2, 1, 6, 6), torch.rand(2, 9)):
        assert torch.allclose(Rise(16)(Task(Constant(), inputs), Key(0)).values, torch.tensor(5.0), atol=1e-5)


def test_unbiased_on_an_additive_model():
    torch.manual_seed(2)
    model, x = nn.Linear(5, 2).double(), torch.randn(1, 5).double()
    task = Task(model, x, fill=0.0)
    terms = x * model.weight[task.targets].detach()
    y = float(model.bias[task.targets].detach())
    # E[y | i kept] = bias + term_i + keep * (other terms)
    truth = y + terms + 0.4 * (terms.sum(-1, keepdim=True) - terms)
    runs = torch.stack([Rise(40, keep=0.4)(task, Key(s)).values for s in range(200)])
    error = runs.std(0) / 200**0.5
    assert ((runs.mean(0) - truth).abs() < 4 * error).all()


def test_other_fills_and_spaces():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    image = Task(model, torch.rand(2, 1, 8, 8), fill=Blur(1.0))
    assert torch.isfinite(Rise(16)(image, Key(0)).values).all()
    custom = image.with_fill(Custom(lambda x, removed: torch.where(removed, 0.0, x)))
    assert torch.isfinite(Rise(16)(custom, Key(0)).values).all()
    patches = image.with_space(Space.patches((1, 8, 8), 4))
    assert Rise(16)(patches, Key(0)).values.shape == (2, 4)


@pytest.mark.parametrize("wrong", [{"draws": 1}, {"keep": 1.0}, {"grid": 0}])
def test_settings_are_checked(wrong):
    with pytest.raises(InputError):
        Rise(**wrong)
