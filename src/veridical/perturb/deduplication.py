"""Nested sets asked once: an answer that serves several masks, or several explainers, is one evaluation.

Removing a feature that equals its fill changes nothing, so on a black background many steps of a flipping
curve come to the same; and without its features every sample looks alike, whatever ranked them.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from veridical.models.output_heads import Response
from veridical.models.sessions import Session
from veridical.perturb.rules import RankThreshold
from veridical.perturb.shared_work import shared

if TYPE_CHECKING:
    from veridical.values.task import Task


def one_hides_all(task: Task, background: Tensor) -> bool:
    """Whether one background row hides every sample whole, so that all look alike without features.

    `background` is that of the first two samples, one row where they share it.
    """
    return (
        len(task.inputs) > 1
        and background.shape[:2] == (1, 1)
        and not task.side
        and task.space.valid is None
        and bool((task.space.labels >= 0).all())
    )


def ask_once(
    task: Task,
    rule: RankThreshold,
    background: Tensor,
    response: Response,
    signature: Tensor,
    whole: Tensor,
    name: Hashable,
) -> Tensor:
    """Answers (N, M) where a set is first met, and the background's where no feature is left; others are 0.

    `signature` (N, M) counts the removed features that matter, `whole` (N, 1) all that do. The background
    (1, 1, *input shape) is asked once for all that share the task's work under this name.
    """
    predictor, targets = task.predictor, task.targets[:, None]
    before = torch.cat([torch.zeros_like(whole), signature[:, :-1]], -1)
    emptied = (signature == whole) & (signature != 0)
    samples, masks = ((signature != before) & (signature != 0) & ~emptied).nonzero(as_tuple=True)
    out = task.outputs.new_zeros(signature.shape)
    with Session(predictor):
        if bool(emptied.any()):
            empty = shared(task, name, lambda: predictor.chunk(background[0]))
            answers = task.respond(empty, response).expand(len(task.inputs), -1).gather(1, targets)
            out = torch.where(emptied, answers, out)
        found = []
        for at in range(0, len(samples), predictor.rows):
            some = slice(at, at + predictor.rows)
            who = samples[some]
            removed = task.space.expand(rule.picked(who, masks[some]), who)
            rows = torch.where(removed, background[0], task.inputs[who])
            found.append(task.respond(predictor.chunk(rows), response).gather(1, targets[who])[:, 0])
        if found:
            out[samples, masks] = torch.cat(found)
    return out
