"""Maps made many at a time: the same as one at a time, and checked all the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

import veridical as vd
from veridical.core.key import Key
from veridical.errors import InputError
from veridical.explainers import Explainer
from veridical.metrics.re_explaining import at_once, explaining, stacked
from veridical.models.context import Context


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


def test_as_many_draws_as_fit_a_chunk_and_one_for_those_that_draw_themselves():
    task = task_of()
    gradient = vd.list_explainers()  # names only
    assert "gradient" in gradient
    made = {name: vd.api.as_explainer(name) for name in ("gradient", "integrated_gradients", "random")}
    assert at_once(made["gradient"], task, 10) == 6
    assert at_once(made["gradient"], task, 4) == 4
    assert at_once(made["integrated_gradients"], task, 10) == 1
    assert at_once(made["random"], task, 10) == 1


def test_stacked_samples_are_explained_like_those_alone():
    task = task_of()
    explainer = vd.api.as_explainer("input_x_gradient")
    three = stacked(task, 3)
    assert len(three) == 15
    with explaining(explainer, Context(), task) as explain:
        together = explain(three, Key(0)).unflatten(0, (3, 5))
        alone = explain(task, Key(0))
    for part in together:
        torch.testing.assert_close(part, alone, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "name", ["max_sensitivity", "relative_output_stability", "continuity", "smooth_mprt"]
)
def test_how_many_are_explained_at_once_changes_nothing(name):
    few, many = (vd.score(name, task_of(rows=rows), "gradient").values for rows in (8, 4096))
    torch.testing.assert_close(few, many, rtol=1e-9, atol=1e-9)


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
