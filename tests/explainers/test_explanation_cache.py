"""Explanations on disk: found again when nothing changed, and only then."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier
from torch import Tensor, nn

import veridical as vd
from tests.reference.small_models import mlp
from veridical.core.key import Key
from veridical.explainers import ExplanationCache, IntegratedGradients, Occlusion
from veridical.models.predictor import Plan

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


def files(folder: Path) -> int:
    return len(list(folder.glob("*.safetensors")))


def test_the_second_time_asks_the_model_nothing(tmp_path: Path) -> None:
    task = vd.Task(mlp(), X)
    made = vd.explain("integrated_gradients", task, cache=tmp_path)
    fresh = vd.Task(mlp(), X)
    found = vd.explain("integrated_gradients", fresh, cache=tmp_path)
    assert fresh.predictor.meter.forward == 0
    assert torch.equal(found.values, made.values)
    assert torch.equal(found.order, made.order)
    assert found.cost == made.cost
    assert files(tmp_path) == 1


class Scaled(nn.Module):
    """Its answer depends on a plain attribute that no weight and no repr shows."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.inner = mlp()
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * self.scale


def test_everything_that_matters_makes_a_file_of_its_own(tmp_path: Path) -> None:
    task = vd.Task(mlp(), X)
    cache = ExplanationCache(tmp_path)
    steps = IntegratedGradients(steps=4)
    cases = [
        (steps, task, Key(0)),
        (steps, task, Key(1)),
        (IntegratedGradients(steps=5), task, Key(0)),
        (steps, vd.Task(mlp(seed=1), X), Key(0)),
        (steps, vd.Task(mlp(), X + 0.1), Key(0)),
        (steps, task.with_noise(0.5, Key(0)), Key(0)),
        (steps, task.with_targets((task.targets + 1) % 3), Key(0)),
        (steps, task.with_plan(Plan(rows=8)), Key(0)),
        (steps, vd.Task(Scaled(1.0), X), Key(0)),
        (steps, vd.Task(Scaled(2.0), X), Key(0)),
    ]
    paths = {cache.path(*case) for case in cases}
    assert len(paths) == len(cases)
    assert cache.path(steps, vd.Task(mlp(), X.clone()), Key(0)) == cache.path(*cases[0])


def test_estimators_that_agree_on_the_inputs_are_still_told_apart(tmp_path: Path) -> None:
    rows = X.numpy()
    y = (rows[:, 0] > 0).astype(int)
    models = [LogisticRegression(C=c).fit(rows, y) for c in (1.0, 1e-3)]
    trees = [DecisionTreeClassifier(random_state=s, splitter="random").fit(rows, y) for s in (0, 3)]
    tasks = [vd.Task(m, rows, targets=0) for m in (*models, *trees)]
    assert torch.equal(tasks[2].outputs, tasks[3].outputs)
    maps = [vd.explain("occlusion", t, cache=tmp_path).values for t in tasks]
    assert files(tmp_path) == 4
    again = [vd.explain("occlusion", t, cache=tmp_path).values for t in tasks]
    assert all(torch.equal(a, b) for a, b in zip(maps, again, strict=True))


def test_where_a_users_function_takes_part_nothing_is_kept(tmp_path: Path) -> None:
    module = vd.Task(mlp(), X)
    function = vd.Task(lambda x: x[:, :3] * 2, X)
    filled = [vd.Task(mlp(), X, fill=lambda x, removed, v=v: torch.where(removed, v, x)) for v in (0.0, 9.0)]
    vd.explain(lambda model, inputs, targets: inputs, module, cache=tmp_path)
    vd.explain("occlusion", function, cache=tmp_path)
    first, second = (vd.explain("occlusion", t, cache=tmp_path).values for t in filled)
    assert not torch.equal(first, second)
    assert files(tmp_path) == 0


def test_a_spoiled_file_is_made_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    task = vd.Task(mlp(), X)
    made = vd.explain("occlusion", task, cache=tmp_path)
    path = ExplanationCache(tmp_path).path(Occlusion(), task, Key(0))
    path.write_bytes(b"spoiled")
    with caplog.at_level("WARNING", "veridical"):
        again = vd.explain("occlusion", task, cache=tmp_path)
    assert torch.equal(again.values, made.values)
    assert "made again" in caplog.text
    assert torch.equal(vd.Explanation.load(path).values, made.values)
