"""The certificate of a judge: does the fine-tuned model still answer, and read its inputs, as the model does?

FFid asks the judge in the model's place, so the judge must be the model but for missing features. A
certificate is measured once, on whole rows held out of the fine-tuning, and lies in the artefact.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from veridical.api import as_explanation
from veridical.errors import NotApplicableError
from veridical.explainers.base import registry
from veridical.fidelity.correctness import accuracy, own_answers
from veridical.fidelity.training_rows import READ_AT_ONCE, Rows
from veridical.functional import spearman
from veridical.models.predictor import take_side
from veridical.values.task import Task

REFUSED = 0.7
"""Below this share of equal answers the judge is another model, and FFid refuses it."""
FLAGGED = 0.9
"""Below this share every score is flagged."""
LOST = 0.1
"""Nor may it lose more accuracy than this on whole inputs, against the targets it was trained on; by chance
held-out rows may show more (one-sided, 5%)."""
LOST_FLAGGED = 0.05
"""Above this loss of accuracy every score is flagged."""
MAPS_REFUSED = 0.3
"""Below this rank agreement of saliency maps the judge reads its inputs otherwise, and FFid refuses it."""
MAPS_FLAGGED = 0.8
"""Below this rank agreement every score is flagged: between good maps the judge prefers its own."""
FEW_ROWS = 30
"""With fewer held-out rows the agreement is hardly known: a flag."""
MAPS = 32
"""Held-out rows whose maps are compared."""
EXPLAINER = "saliency"


@dataclass(frozen=True)
class Certificate:
    """How a judge compares with the model on `rows` whole held-out inputs.

    `agreement` is the share of equal answers (of equal labels; R^2 for a regression), and the accuracies are
    against the targets of the fine-tuning: labels, or the model's own answers. `maps` is the mean rank
    correlation of saliency maps, None where there are no gradients.
    """

    rows: int
    agreement: float
    maps: float | None
    original_accuracy: float
    accuracy: float

    @property
    def why_not(self) -> str | None:
        """Why this judge may not judge, or None if it may."""
        reason = None
        if not self.agreement >= REFUSED:
            reason = f"{self._share}, less than the {REFUSED:.0%} below which it is another model"
        elif self.maps is not None and not self.maps >= MAPS_REFUSED:
            reason = f"reads inputs elsewhere, {self._maps} and not {MAPS_REFUSED:g} at least"
        elif not self._lost <= LOST + 1.645 * math.sqrt(LOST * (1 - LOST) / self.rows):
            reason = f"{self._worse}, more than {100 * LOST:.0f}"
        if reason is None:
            return None
        return f"the judge {reason}: fine-tune more gently (a lower rate) or on more rows, or use RFid"

    @property
    def flags(self) -> tuple[str, ...]:
        """What every score by this judge is flagged for."""
        found = []
        if self.agreement < FLAGGED:
            found.append(f"the judge {self._share} only")
        if self._lost > LOST_FLAGGED:
            found.append(f"the judge {self._worse}")
        if self.maps is not None and self.maps < MAPS_FLAGGED:
            found.append(f"the judge reads inputs elsewhere: {self._maps}, so close scores may be its own")
        if self.rows < FEW_ROWS:
            found.append(f"the judge was certified on {self.rows} held-out rows, too few to know it")
        return tuple(found)

    @property
    def _lost(self) -> float:
        return self.original_accuracy - self.accuracy

    @property
    def _maps(self) -> str:
        return f"its saliency maps agree with the model's by rank at {self.maps:.2f}"

    @property
    def _worse(self) -> str:
        return f"loses {100 * self._lost:.0f} points of accuracy on {self.rows} whole held-out inputs"

    @property
    def _share(self) -> str:
        return f"answers {self.agreement:.0%} of {self.rows} whole held-out inputs as the model does"

    def to_json(self) -> dict[str, Any]:
        """Plain data for the artefact."""
        return asdict(self)


def certify(task: Task, judge: Task, rows: Rows, held: Tensor) -> Certificate:
    """Compare a judge (the same task on the fine-tuned model) with the task's model on held-out rows."""
    answers = torch.cat([_answers(judge, rows, index) for index in held.split(READ_AT_ONCE)])
    own, truth = rows.answers[held], rows.targets[held]
    return Certificate(
        len(held),
        accuracy(answers, own, task),
        _map_agreement(task, judge, rows, held[:MAPS]),
        accuracy(own, truth, task),
        accuracy(answers, truth, task),
    )


def _answers(judge: Task, rows: Rows, index: Tensor) -> Tensor:
    return own_answers(judge.predictor.outputs(rows.inputs[index], take_side(rows.side, index)), judge)


def _map_agreement(task: Task, judge: Task, rows: Rows, index: Tensor) -> float | None:
    """The mean rank correlation of both models' saliency maps for the same outputs."""
    few = rows.task(task, index)
    method = registry.make(EXPLAINER)
    if method.why_not(few) is not None or few.space.n_features < 2:
        return None
    try:
        before = as_explanation(method, few)
        after = as_explanation(method, few.with_module(judge.model))
    except NotApplicableError:
        return None
    there = before.spread
    if not bool(there.any()):
        return None
    # a map that has become constant agrees with none
    return float(spearman(before.values, after.values, where=before.valid)[there].nan_to_num(0.0).mean())
