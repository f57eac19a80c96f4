"""Tokens of a vision transformer that do not lie as class token and patches: refused, never shifted."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import veridical as vd
from tests.reference.small_nets import draw, seeded
from veridical.explainers import registry

READERS = ["gradcam", "layercam", "attention_rollout", "gradient_x_attention"]


class Tokens(nn.Module):
    """Two blocks of attention over 2 x 3 patches, and tokens of its own before and behind them."""

    def __init__(self, before: int, behind: int = 0, late: int = 0, rows_first: bool = True) -> None:
        super().__init__()
        self.cut, self.last = nn.Conv2d(3, 8, 4, 4), nn.Linear(8, 3)
        self.before, self.behind, self.late = (
            nn.Parameter(torch.zeros(1, n, 8)) for n in (before, behind, late)
        )
        self.places = nn.Parameter(torch.zeros(1, before + 6 + behind, 8))
        self.mix = nn.ModuleList(nn.MultiheadAttention(8, 2, batch_first=rows_first) for _ in range(2))
        self.rows_first, self.read = rows_first, -1 if behind else 0

    def forward(self, x: Tensor) -> Tensor:
        patches = self.cut(x).flatten(2).transpose(1, 2)
        own = [v.expand(len(x), -1, -1) for v in (self.before, self.behind, self.late)]
        h = torch.cat([part for part in (own[0], patches, own[1]) if part.shape[1]], 1) + self.places
        if self.late.shape[1]:
            h = torch.cat([h[:, :1], own[2], h[:, 1:]], 1)
        h = h if self.rows_first else h.transpose(0, 1)
        for mix in self.mix:
            h = h + mix(h, h, h, need_weights=False)[0]
        h = h if self.rows_first else h.transpose(0, 1)
        return self.last(h[:, self.read])


def task_of(*how: int, **more: bool) -> vd.Task:
    return vd.Task(seeded(Tokens(*how, **more)), draw(4, 3, 8, 12).abs())


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("how", [(1, 0), (2, 0)])
def test_tokens_before_the_patches_are_left_out(how: tuple[int, int], name: str) -> None:
    explainer, task = registry.make(name), task_of(*how)
    found = explainer(task)
    assert found.cost == explainer._declared(task)
    alone = torch.cat([explainer(task[at : at + 1]).values for at in range(4)])
    torch.testing.assert_close(alone, found.values)


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("how", [(0, 1), (1, 1), (1, 0, 4)], ids=["behind", "both", "registers"])
def test_tokens_behind_the_patches_or_many_are_refused(how: tuple[int, ...], name: str) -> None:
    assert len(str(registry.make(name).why_not(task_of(*how)))) > 60


def test_places_before_rows_are_refused_where_they_cannot_be_told() -> None:
    task, plain = task_of(1, rows_first=False), task_of(1)
    torch.testing.assert_close(task.outputs, plain.outputs)
    assert "places before rows" in str(registry.make("gradcam").why_not(task))
    rollout = registry.make("attention_rollout")
    torch.testing.assert_close(rollout(task).values, rollout(plain).values)
