"""LIME and RISE: closed forms, slow rewrites, invariances."""

from __future__ import annotations

from itertools import product
from math import comb

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from veridical.core.key import Key
from veridical.core.space import Space
from veridical.explainers import KernelShap, Lime, Rise
from veridical.explainers.rise import _SmoothMasks
from veridical.explainers.surrogates import least_squares
from veridical.models import Memo
from veridical.models.context import Context
from veridical.models.predictor import Plan
from veridical.perturb.fills import Blur, Custom, Token
from veridical.perturb.mask_bank import banks
from veridical.values.task import Task


def test_additive_model_gives_its_terms_as_the_ridge_vanishes():
    torch.manual_seed(0)
    model, x = nn.Linear(7, 3).double(), torch.randn(4, 7).double()
    task = Task(model, x, fill=0.0)
    truth = x * model.weight[task.targets].detach()
    assert torch.allclose(Lime(ridge=1e-6)(task, Key(0)).values, truth, atol=1e-5)
    shrunk = Lime(ridge=1e3)(task, Key(0)).values
    assert shrunk.abs().sum() < 0.2 * truth.abs().sum()


def slow_lime(
    task: Task,
    settings: Lime,
    key: Key,
    i: int,
    width_power: float = 2.0,
    as_drawn: bool = False,
    alone: bool = False,
) -> np.ndarray:
    """Ribeiro's weighted ridge with a free intercept over masks of uniform size, by normal equations."""
    V, draws = task.space.n_features, settings.draws
    likely = {s: 1 / (V + 1) / comb(V, s) for s in range(V + 1)}
    if draws + 1 >= 2**V:
        masks = [np.array(gone) for gone in product([False, True], repeat=V)]
        expected = dict.fromkeys(range(V + 1), 1.0)
    else:
        (bank,) = banks(task, Context(key), draws, draws // 8)
        masks = [mask.numpy() for mask in bank.masks[i]]
        kernel = {s: (V - 1) / (comb(V, s) * s * (V - s)) for s in range(1, V)}
        if draws // 8 < V:
            kernel = {s: 1 / comb(V, s) for s in range(1, V)}
        total = sum(kernel[s] * comb(V, s) for s in kernel)
        # how often a set of each size is drawn; the ends are there once
        expected = {0: 1.0, V: 1.0} | {s: (len(masks) - 2) * kernel[s] / total for s in kernel}
    Z, y, w = [], [], []
    for gone in masks:
        share = gone.mean()
        row = torch.where(torch.as_tensor(gone), torch.zeros_like(task.inputs[i]), task.inputs[i])
        y.append(float(task.predictor.model(row[None])[0, task.targets[i]].detach()))
        weight = 1.0 if as_drawn else draws * likely[gone.sum()] / expected[gone.sum()]
        w.append(weight * np.exp(-((share / settings.kernel_width) ** width_power)) + (not gone.any()))
        Z.append(1.0 - gone)
    A = np.concatenate([np.ones((len(Z), 1)), np.array(Z)], 1)
    free = [0.0]
    if draws + 1 < 2**V and not alone:
        # the curve of responses over how many are gone, less the line through it over all masks
        each = np.arange(V + 1) / V
        root = np.exp(-((each / settings.kernel_width) ** width_power)) / (V + 1)
        root[0] += 1 / draws
        line = np.polyfit(each, each**2, 1, w=root**0.5)
        gone = 1 - np.array(Z).mean(1)
        A, free = np.concatenate([(gone**2 - np.polyval(line, gone))[:, None], A], 1), [0.0, 0.0]
    W = np.diag(w)
    penalty = settings.ridge * np.diag(free + [1.0] * V)
    return np.linalg.solve(A.T @ W @ A + penalty, A.T @ W @ np.array(y))[-V:]


# masks that KernelSHAP draws, too; of its own, more than features and fewer; and all there are
@pytest.mark.parametrize(("features", "draws"), [(14, 121), (14, 61), (14, 9), (7, 127)])
def test_equals_the_slow_rewrite(features, draws):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(features, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    task = Task(model, torch.randn(3, features).double(), fill=0.0)
    settings = Lime(draws=draws, ridge=0.1)
    explained = settings(task, Key(3))
    found = explained.values.numpy()
    slow = np.stack([slow_lime(task, settings, Key(3), i) for i in range(3)])
    assert np.allclose(found, slow, atol=1e-7)
    assert explained.cost.forward == 3 * draws
    drawn = ({"as_drawn": True}, {"alone": True}) if draws == 121 else ()
    for mutant in ({"width_power": 1.0}, *drawn):
        wrong = np.stack([slow_lime(task, settings, Key(3), i, **mutant) for i in range(3)])
        assert not np.allclose(found, wrong, atol=1e-4)


def test_draws_estimate_what_all_masks_give():
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(11, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    task = Task(model, torch.randn(4, 11).double(), fill=0.0)
    draws = 401
    whole = Lime(2**11, ridge=2**11 / draws)(task, Key(0)).values
    runs = torch.stack([Lime(draws)(task, Key(seed)).values for seed in range(60)])
    # a ratio of sums is off by about 1 / draws of its spread
    bias = (runs.mean(0) - whole).abs()
    assert (bias < 4 * runs.std(0) / 60**0.5 + 0.02 * whole.abs().amax()).all()
    assert float((runs[0] - whole).abs().max()) < 0.2 * float(whole.abs().max())


def test_kernel_shap_and_lime_share_their_rows():
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(20, 8), nn.Tanh(), nn.Linear(8, 3))
    task, memo = Task(model, torch.randn(4, 20), fill=0.0), Memo()
    first, second = KernelShap()(task, Key(6), memo), Lime()(task, Key(6), memo)
    assert (first.cost.forward, second.cost.forward) == (4 * 511, 0)
    other = task.with_targets((task.targets + 1) % 3)
    for explainer in (KernelShap(), Lime()):
        shared = explainer(other, Key(6), memo)
        assert shared.cost.forward == 0
        assert torch.equal(shared.values, explainer(other, Key(6)).values)
    assert torch.equal(second.values, Lime()(task, Key(6)).values)
    assert Lime(256)(task, Key(6), memo).cost.forward == 4 * 255
    # too few rows for as many features: masks of its own, with sizes that are spread evenly
    KernelShap(101)(task, Key(6), memo)
    assert Lime(101)(task, Key(6), memo).cost.forward == 4 * 101


def test_padding_and_chunks_do_not_matter():
    torch.manual_seed(2)
    embed = nn.Embedding(12, 3)

    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = embed, nn.Linear(3, 2)

        def forward(self, ids):
            return self.head(torch.tanh((self.embed(ids) * (ids > 0)[..., None]).sum(1)))

    ids = torch.randint(1, 12, (3, 5))
    model = Bag().double()
    short = Task(model, ids, fill=Token(0), space=Space.tokens(5, torch.ones(3, 5, dtype=torch.bool)))
    valid = torch.arange(9) < 5
    padded = Task(
        model,
        torch.cat([ids, torch.zeros(3, 4, dtype=torch.long)], 1),
        fill=Token(0),
        space=Space.tokens(9, valid.expand(3, 9)),
    )
    a, b = Lime(64)(short, Key(0)).values, Lime(64)(padded.with_plan(Plan(rows=8)), Key(0)).values
    assert torch.allclose(a, b[:, :5], atol=1e-9)
    assert (b[:, 5:] == 0).all()


def test_least_squares_agrees_over_both_routes():
    torch.manual_seed(3)
    X, y, w = torch.randn(2, 6, 4).double(), torch.randn(2, 6).double(), torch.rand(2, 6).double()
    tall = least_squares(X, y, w, 0.3)
    wide = least_squares(torch.cat([X, torch.zeros(2, 6, 9).double()], -1), y, w, 0.3)
    assert torch.allclose(tall, wide[..., :4], atol=1e-12)
    assert (wide[..., 4:] == 0).all()


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
