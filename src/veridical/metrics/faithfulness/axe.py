"""AXE: do the features named first tell, among real rows alone, what the model predicts?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from veridical.metrics import Context, Count, Direction, Explanation, Metric, Outcome, Task, register

MOST_ROWS = 4096
"""Reference rows among which neighbours are looked for, at most, from the first on."""


def neighbour_agreement(apart: Tensor, order: Tensor, labels: Tensor, own: int, k: int) -> float:
    """The share of n = 1, ..., V - 1 for which the k rows nearest in n features are mostly labelled `own`.

    `apart` (R, V) is the squared distance of each row in each feature, NaN-free; rows at distance 0 in all
    of them are the input itself and left out.
    """
    apart = apart[:, order]
    others = apart.sum(-1) > 0
    distance = apart[others].cumsum(-1)[:, : max(1, apart.shape[1] - 1)]
    near = torch.argsort(distance, dim=0, stable=True)[:k]
    votes = torch.nn.functional.one_hot(labels[others][near], int(labels.max()) + 1).sum(0)
    return float((votes.argmax(-1) == own).double().mean())


@register
@dataclass(frozen=True)
class Axe(Metric):
    """How often the k nearest reference rows in the n features named first get the input's prediction.

    The mean over n = 1, ..., V - 1 of whether most of them do. Features are ordered by |e|; distances are of
    standardised columns, and of categories whether they differ. The model evaluates real rows alone.
    """

    k: Count = 5
    """How many neighbours vote; an even vote goes to the first class."""
    name: ClassVar[str] = "axe"
    category: ClassVar[str] = "faithfulness"
    direction: ClassVar[Direction] = Direction.HIGHER
    summary: ClassVar[str] = "Do the features named first tell what the model predicts for real rows?"
    assumes: ClassVar[str] = "what predicts the prediction is what the model uses"
    misleads: ClassVar[str] = (
        "a column the model ignores scores as well as the one it follows, if they go together"
    )
    paper: ClassVar[str] = "Rawal et al. 2025"
    modalities: ClassVar[frozenset[str]] = frozenset({"table"})
    needs: ClassVar[frozenset[str]] = frozenset({"train"})
    averages_ties: ClassVar[bool | None] = True

    def inapplicable_reason(self, task: Task) -> str | None:
        if task.head not in ("multiclass", "binary"):
            return f"it compares predicted classes, and a {task.head} has none"
        if task.side:
            return "reference rows are evaluated alone, and this model takes side inputs"
        return super().inapplicable_reason(task)

    def evaluate(self, task: Task, explanation: Explanation, context: Context) -> Outcome:
        assert task.train is not None
        rows = task.train[:MOST_ROWS]
        labels = context.memo.once(
            task, "predictions of the rows", lambda: task.predictor.outputs(rows).argmax(-1)
        )
        order = explanation.descending_ranks.argsort(-1)
        size = explanation.values.abs().gather(-1, order)
        order = order.gather(-1, torch.argsort(size, dim=-1, descending=True, stable=True))
        apart, own = _Columns(task, rows), task.predictions.tolist()
        found = [
            neighbour_agreement(apart.of(task, n), order[n], labels, own[n], self.k) for n in range(len(task))
        ]
        return Outcome(torch.tensor(found, dtype=torch.float64, device=task.device))


class _Columns:
    """Reference rows, standardised, and which of their columns are names of categories."""

    def __init__(self, task: Task, rows: Tensor) -> None:
        flat = rows.flatten(1).double()
        scale = (flat - flat.nanmean(0)).square().nanmean(0).sqrt()
        self.scale = torch.where(scale > 0, scale, 1.0)
        self.rows = flat / self.scale
        codec = getattr(task.predictor.source.module, "codec", None)
        levels = [()] * flat.shape[1] if codec is None else codec.categories
        self.names = torch.tensor([bool(one) for one in levels], device=rows.device)

    def of(self, task: Task, sample: int) -> Tensor:
        """The squared distance of every row from a sample in each feature (R, V)."""
        x = task.inputs[sample].flatten().double() / self.scale
        apart = (self.rows - x).square()
        odd = self.rows.isnan() | x.isnan()
        differs = torch.where(odd, self.rows.isnan() != x.isnan(), self.rows != x).double()
        apart = torch.where(self.names | odd, differs, apart)
        feature = task.space.labels.flatten().expand_as(apart)
        return apart.new_zeros(len(apart), task.space.n_features).scatter_add_(1, feature, apart)
