"""Near removal: of what moves the response near the data, how much lies in the features a map names first?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from veridical.functional.correlation import tied_runs
from veridical.metrics import Count, Metric, Outcome, PartOf, register
from veridical.metrics.types import Context, Direction, Explanation, Response, Task
from veridical.perturb.near_rows import NEIGHBOURS, STEP, little_moves, near_responses, why_no_near_rows

MIN_FEATURES = 3
"""Features that can be moved a little; a sample with fewer has no score."""


def mean_share(effects: Tensor, relevance: Tensor, where: Tensor) -> Tensor:
    """The share of the effects in the m most relevant features, mean over m = 1, ..., M (N,).

    Features (N, V) of equal relevance share the mean of their effects, which gives the mean over all orders
    of them. NaN where nothing has an effect.
    """
    order, first, last = tied_runs(torch.where(where, -relevance, torch.inf))
    counted = where.gather(-1, order)
    ordered = effects.double().gather(-1, order).masked_fill(~counted, 0.0)
    up_to = torch.nn.functional.pad(ordered.cumsum(-1), (1, 0))
    equal = (up_to.gather(-1, last + 1) - up_to.gather(-1, first)) / (last - first + 1)
    found = equal.cumsum(-1) / ordered.sum(-1, keepdim=True)
    return (found * counted).sum(-1) / counted.sum(-1)


@register
@dataclass(frozen=True)
class NearRemoval(Metric):
    """The share of near effects in the features a map names first, mean over how many these are.

    The near effect of feature j is the mean over near neighbours k of |y(x with j moved a step towards k) -
    y(x)|. Features are ranked by the size of their relevance. No row leaves the data, so that what a model
    answers to inputs that do not occur has no part in the score: the removal test of models that follow
    another rule there. Features that take a neighbour's value whole (categories, few values, whole numbers)
    are no small move, and do not count; a sample with fewer than three others has no score.
    """

    neighbours: Count = NEIGHBOURS
    """How many of the nearest reference rows features move towards."""
    step: PartOf = STEP
    """How far features move, as a share of the way."""
    response: Response = "logit"
    """The scale on which responses are read: "probability" or "logit"."""
    name: ClassVar[str] = "near_removal"
    category: ClassVar[str] = "faithfulness"
    direction: ClassVar[Direction] = Direction.HIGHER
    summary: ClassVar[str] = "Do the features named first move the response when they go towards near rows?"
    assumes: ClassVar[str] = "reference rows near the inputs, and a model that small moves of a feature move"
    misleads: ClassVar[str] = "where features act together only, or neighbours share the value that matters"
    paper: ClassVar[str] = "veridical; after Bach et al. 2015"
    needs: ClassVar[frozenset[str]] = frozenset({"train"})

    def inapplicable_reason(self, task: Task) -> str | None:
        return super().inapplicable_reason(task) or why_no_near_rows(task)

    def evaluate(self, task: Task, explanation: Explanation, context: Context) -> Outcome:
        name = "near effects", self.neighbours, self.step, self.response
        effects = context.memo.once(task, name, lambda: self.effects(task))
        exists = torch.ones_like(effects, dtype=torch.bool) if task.space.valid is None else task.space.valid
        little = exists & little_moves(task)
        few = little.sum(-1) < MIN_FEATURES
        values = mean_share(effects, explanation.values.double().abs(), little)
        flags = {
            f"fewer than {MIN_FEATURES} features can be moved a little": few,
            "no near effect: no feature moves the response": values.isnan() & ~few,
        }
        return Outcome(values.masked_fill(few, torch.nan), flags=flags)

    def effects(self, task: Task) -> Tensor:
        """The near effect of each feature (N, V)."""
        each = torch.eye(task.space.n_features, dtype=torch.bool, device=task.device)
        moved = each.expand(len(task), -1, -1)
        own, responses = near_responses(task, moved, self.response, self.step, self.neighbours)
        return (responses - own[..., None]).abs().mean(1)
