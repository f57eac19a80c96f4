"""Average sensitivity: how far does the map move on average when the input moves a little?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from veridical.metrics import Context, Explainer, Outcome, Task, register
from veridical.metrics.robustness._common import nan_where_any
from veridical.metrics.robustness.max_sensitivity import Sensitivity


@register
@dataclass(frozen=True)
class AvgSensitivity(Sensitivity):
    """mean over draws u of ‖e(x) - e(x + u)‖ / ‖x‖ (Euclidean), maps divided by their root mean square.

    A draw at which the explainer failed is left out of the mean.
    """

    name: ClassVar[str] = "avg_sensitivity"
    summary: ClassVar[str] = "How far does the map move on average when the input moves a little?"
    assumes: ClassVar[str] = "a small change of the input should not change its explanation"
    misleads: ClassVar[str] = "it rewards maps that ignore input and model; rare large jumps average out"
    paper: ClassVar[str] = "Yeh et al. 2019; Bhatt et al. 2020"

    def evaluate(self, task: Task, explainer: Explainer, context: Context) -> Outcome:
        table, flags = self.distances(task, explainer, context)
        return Outcome(nan_where_any(table.nanmean(-1), flags), flags, details={"draws": table})
