"""Efficient MPRT: does the map become more complex when the whole model is randomised?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from veridical.functional import histogram_entropy
from veridical.metrics import MANY, Count, ExplainerMetric, Outcome, Within, register
from veridical.metrics.randomisation._common import fully_randomised
from veridical.metrics.re_explaining import explaining, one_session
from veridical.metrics.types import Context, Direction, Explainer, Task


def relative_rise(before: Tensor, after: Tensor) -> Tensor:
    """(after - before) / before; NaN where before is 0."""
    return (after - before) / torch.where(before == 0, torch.nan, before)


@register
@dataclass(frozen=True)
class EfficientMprt(ExplainerMetric):
    """Relative rise of the map's complexity under a fully randomised model: (c(e_hat) - c(e)) / c(e).

    c is the entropy, in nats, of the histogram of the map's values in `bins` equal bins from its own
    minimum to its own maximum (GEF eq. 32); mean over `draws` randomised models.
    """

    bins: Annotated[int, Within(2, MANY)] = 100
    """Bins of the histogram of a map's values."""
    draws: Count = 1
    """Randomised models, over which the score is averaged."""
    name: ClassVar[str] = "efficient_mprt"
    category: ClassVar[str] = "randomisation"
    direction: ClassVar[Direction] = Direction.HIGHER
    summary: ClassVar[str] = "Does the map become more complex when the whole model is randomised?"
    assumes: ClassVar[str] = "explanations of a trained model are simpler than those of a random one"
    misleads: ClassVar[str] = "outliers set the bins; maps that start complex cannot rise much"
    paper: ClassVar[str] = "Hedström et al. 2024; GEF eq. 32"
    permutation_invariant: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"explainer", "weights"})

    def evaluate(self, task: Task, explainer: Explainer, context: Context) -> Outcome:
        after: list[Tensor] = []
        with one_session(task, explainer), explaining(explainer, context, task) as explain:
            clean = explain(task, context.key / "clean")
            missing = explain.missing
            for draw in range(self.draws):
                values = explain(
                    fully_randomised(task, context.key / "weights" / draw), context.key / "explain" / draw
                )
                # the clean maps are counted together with the first others, in the same steps
                maps = values[None] if draw else torch.stack([clean, values])
                after.extend(histogram_entropy(maps, self.bins, where=task.space.valid))
        before = after.pop(0)
        risen = torch.stack(after, -1).mean(-1)
        flags = {
            "no explanation": missing,
            "the map is constant: it has no complexity to rise from": before == 0,
            "no explanation of the randomised model": risen.isnan() & ~missing,
        }
        details = {"complexity": before, "complexity when randomised": risen}
        return Outcome(relative_rise(before, risen), flags, details=details)
