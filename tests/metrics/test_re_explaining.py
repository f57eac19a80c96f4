"""Maps made many at a time: the same as one at a time, and checked all the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

import veridical as vd
from veridical.errors import InputError
from veridical.explainers import Explainer


def task_of(samples: int = 5, rows: int = 32) -> vd.Task:
    g = torch.Generator().manual_seed(0)
    x = torch.rand(samples, 1, 6, 6, generator=g, dtype=torch.float64)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 12), nn.Tanh(), nn.Linear(12, 3)).double()
    return vd.Task(model, x, train=x, plan=vd.Plan(rows=rows))


@dataclass(frozen=True)
class Written(Explainer):
    """Maps with something wrong in one sample."""

    what: Any = float("nan")
    whole: bool = False
    name: ClassVar[str] = "written"

    def attribute(self, task, context):
        maps = torch.ones_like(task.inputs)
        maps[task.ids == 3] = torch.where(
            torch.arange(36).view(1, 6, 6) < (36 if self.whole else 1), self.what, 1.0
        ).double()
        return maps


@pytest.mark.parametrize("what", [float("nan"), float("inf")])
def test_a_map_that_is_broken_in_part_is_refused_at_the_end(what):
    with pytest.raises(InputError, match=r"'written' is NaN or infinite in samples \[3\]"):
        vd.score("max_sensitivity", task_of(), Written(what))


def test_a_sample_that_could_not_be_explained_is_flagged_not_refused():
    scores = vd.score("max_sensitivity", task_of(), Written(whole=True))
    assert scores.flags["no explanation"].tolist() == [False, False, False, True, False]
    assert scores.values.isnan().tolist() == [False, False, False, True, False]


def test_all_variants_are_explained_in_one_call_where_a_chunk_holds_them():
    task = task_of(rows=4096)
    _ = task.outputs
    for name, rows in (("continuity", 5 * 5), ("max_sensitivity", 11 * 5), ("random_logit", 2 * 5)):
        seen: list[int] = []
        hook = task.predictor.model.register_forward_pre_hook(lambda _, x, seen=seen: seen.append(len(x[0])))
        vd.score(name, task, "gradient")
        hook.remove()
        assert seen == [rows]
