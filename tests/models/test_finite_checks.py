"""Answers and maps that are not finite are refused by every result that is made of them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import veridical as vd
from veridical.errors import InputError, ModelError, VeridicalWarning


class Breaking(nn.Module):
    """Answers NaN where an input is all zeros."""

    def forward(self, x: Tensor) -> Tensor:
        total = x.flatten(1).sum(-1, keepdim=True)
        return torch.cat([total, -total], 1) / total.abs()


class Exploding(vd.Explainer):
    name = "exploding"

    def attribute(self, task, context):
        maps = task.inputs.clone()
        maps[1, 0] = torch.inf
        return maps


def task_of(model: nn.Module | None = None) -> vd.Task:
    torch.manual_seed(0)
    return vd.Task(model or nn.Linear(6, 3), torch.rand(5, 6) + 0.1, train=torch.rand(4, 6), fill=0.0)


@pytest.mark.parametrize("name", ["pixel_flipping", "completeness", "insertion", "monotonicity"])
def test_a_model_that_answers_nan_is_refused(name: str) -> None:
    task = task_of(Breaking())
    maps = vd.explain("gradient", task)
    with pytest.raises(ModelError, match="NaN or infinity"):
        vd.score(name, task, maps)


@pytest.mark.parametrize("name", ["max_sensitivity", "consistency", "sufficiency", "random_logit", "mprt"])
def test_a_map_that_is_infinite_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"in samples \[1\]"):
        vd.score(name, task_of(), Exploding())
    with pytest.raises(InputError, match="infinite"):
        vd.explain(Exploding(), task_of())


def test_cells_that_fail_are_told_by_evaluate() -> None:
    with pytest.warns(VeridicalWarning):
        done = vd.evaluate(task_of(Breaking()), ["gradient", Exploding()], ["pixel_flipping", "sparseness"])
    assert set(done.scores) == {("gradient", "sparseness")}
    assert len(done.failures) == 2
