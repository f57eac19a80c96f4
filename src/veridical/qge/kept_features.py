"""Kept features: the mean response when only the most relevant features are kept (QGE eq. 6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from veridical.core.allowed import Count
from veridical.metrics.base import Outcome, RankingMetric, register
from veridical.metrics.faithfulness._common import RankPath
from veridical.models.context import Context
from veridical.models.output_heads import Response
from veridical.perturb.fills import Fill
from veridical.perturb.rules import RankThreshold, removed_share, step_counts
from veridical.values.explanation import Explanation
from veridical.values.scores import Curve, Direction
from veridical.values.task import Task


@register
@dataclass(frozen=True)
class KeptFeatures(RankingMetric):
    """q = 1/L sum over levels l = 0..L of the response when only the m_l most relevant features are kept.

    Without `levels` there is one for every number of features, m = 0..D, and L = D (QGE eq. 6); with it,
    m_l = D - floor((L - l) D / L), in integers. The sum has one term more than it is divided by, as printed,
    so a perfect score is 1 + 1/L. The paper explains the label: give the task `targets=labels` for that.
    """

    levels: Count | None = None
    """Numbers of kept features that are asked, L; None asks every number."""
    response: Response = "probability"
    """The scale on which answers are read: "probability" or "logit"."""
    fill: Fill | None = None
    """What removed features become; None is the task's own fill."""
    name: ClassVar[str] = "kept_features"
    category: ClassVar[str] = "faithfulness"
    direction: ClassVar[Direction] = Direction.HIGHER
    summary: ClassVar[str] = "Do the most relevant features alone keep the response up?"
    assumes: ClassVar[str] = "inputs with few features left are still like those the model was trained on"
    misleads: ClassVar[str] = "when the fill itself looks like a class, or masking is out of distribution"
    paper: ClassVar[str] = "Eiras-Franco et al. 2025 (QGE), eq. 6"
    ranks_only: ClassVar[bool] = True

    def path(self, task: Task) -> RankPath:
        """Keeping the most relevant is removing the least relevant: every point weighs 1/L."""
        counts = step_counts(task, self.levels, None)
        share = removed_share(task, counts)
        # samples of unequal size: steps that remove nothing more are no further levels
        new = share.diff(dim=-1, prepend=share[:, :1] - 1) > 0
        levels = (new.sum(-1, keepdim=True) - 1).clamp(min=1)
        return RankPath(counts, new / levels.double(), False, self.response, self.fill)

    def evaluate(self, task: Task, explanation: Explanation, context: Context) -> Outcome:
        path = self.path(task)
        rule = RankThreshold(explanation.ranks, path.counts)
        responses = self.responses(task, rule, context)
        kept = 1 - removed_share(task, path.counts)
        return Outcome(
            path.score(responses[:, None])[:, 0],
            curve=Curve(kept.mean(0).flip(-1), responses.flip(-1), "share of features kept", self.response),
        )
