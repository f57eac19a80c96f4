"""Maps that rank nothing are flagged by every metric there is, whatever number they get."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

import veridical as vd
from tests.reference.small_models import Text
from veridical.explainers.base import Explainer
from veridical.explainers.base import registry as explainers
from veridical.metrics.base import CONSTANT, ExplainerMetric, registry
from veridical.models.context import Context
from veridical.values.task import Task


@dataclass(frozen=True)
class Level(Explainer):
    """Every feature alike, except in sample 2, which is explained by its gradient."""

    level: float = 0.0
    """The value of all features."""
    name: ClassVar[str] = "level"

    def attribute(self, task: Task, context: Context) -> Tensor:
        maps = torch.full_like(task.inputs, self.level)
        other = vd.explain("gradient", task).maps().reshape(maps.shape).to(maps)
        return torch.where((task.ids == 2).reshape(-1, 1, 1, 1), other, maps)


@pytest.fixture(scope="module")
def task() -> vd.Task:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)).double()
    x = torch.rand(4, 1, 8, 8).double()
    masks = torch.zeros(4, 8, 8, dtype=torch.bool)
    masks[:, 2:5, 2:5] = True
    # not far from one another, as `near_removal` wants them
    rows = x[torch.arange(60) % 4] + 0.1 * torch.randn(60, 1, 8, 8).double()
    with torch.no_grad():
        train = (rows, net(rows).argmax(-1))
    made = vd.Task(net, x, train=train, masks=masks, fill=0.0)
    return made.with_targets(made.predictions)


WRAPPED = ["qge:pixel_flipping", "qge:max_sensitivity", "qrand:pixel_flipping", "qge:fid_plus"]
EVERY = sorted({*registry, *WRAPPED})


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("level", [0.0, 1.5])
def test_every_metric_flags_constant_maps(task: vd.Task, name: str, level: float, tmp_path) -> None:
    metric = registry.make(name)
    if "image" not in metric.modalities:
        return  # see below
    if name.startswith("ffid"):
        judge = vd.fidelity.finetune(task, epochs=1, cache=tmp_path)
        metric = registry.make(name, finetuned=judge, draws=2)
    explainer = Level(level)
    judged = explainer if isinstance(metric, ExplainerMetric) else vd.explain(explainer, task)
    scores = vd.score(metric, task, judged)
    assert CONSTANT in scores.flags, scores.flagged
    assert scores.flags[CONSTANT].tolist() == [True, True, False, True]
    honest = vd.score(metric, task, "gradient")
    assert CONSTANT not in honest.flags


def test_metrics_of_texts_flag_them_too() -> None:
    only_text = [name for name in registry if {"image", "text"} & registry.make(name).modalities == {"text"}]
    assert only_text
    task = vd.Task(Text().double().eval(), torch.randint(1, 20, (2, 9)), fill=vd.fills.Token(0))
    maps = torch.rand(2, 9)
    maps[1] = 0.5
    for name in only_text:
        assert vd.score(name, task, maps).flags[CONSTANT].tolist() == [False, True]


def test_gef_flags_each_of_several_methods(task: vd.Task) -> None:
    methods = {"flat": Level(1.0), "true": explainers.make("gradient")}
    found = registry.make("fast_gef", draws=2).score_all(task, methods)
    assert found["flat"].flags[CONSTANT].tolist() == [True, True, False, True]
    assert CONSTANT not in found["true"].flags


def test_samples_that_have_no_map_are_not_called_constant(task: vd.Task) -> None:
    maps = torch.rand(4, 64).double()
    maps[1] = torch.nan
    assert CONSTANT not in vd.score("pixel_flipping", task, maps).flags

    def some(model, inputs, targets):
        maps = inputs.clone()
        maps[1] = torch.nan
        return maps

    assert CONSTANT not in vd.score("max_sensitivity", task, some, draws=2).flags


def test_the_transform_is_what_is_looked_at(task: vd.Task) -> None:
    from veridical.explainers.transforms import TopK

    scores = vd.score("max_sensitivity", task, TopK(explainer="gradient", k=64), draws=2)
    assert scores.flags[CONSTANT].all()
