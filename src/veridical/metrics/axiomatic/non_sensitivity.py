"""Non-sensitivity: do exactly those features have no relevance that the model does not depend on?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from veridical.functional import rms_normalise
from veridical.functional._rows import in_blocks
from veridical.metrics import Count, Metric, NotNegative, Outcome, register
from veridical.metrics.types import Context, Direction, Explanation, Fill, Response, Task
from veridical.perturb.fills import UniformNoise
from veridical.perturb.rules import Groups

# responses that differ by one step of the grid they were rounded to may be one response, rounded both ways
_SAME = {torch.float64: 1.5e-9, torch.float32: 1.5e-6}


def disagreements(relevant: Tensor, depended_on: Tensor, exists: Tensor) -> Tensor:
    """|{no relevance} symmetric difference {no dependence}| over the features that exist (N,)."""
    return ((relevant != depended_on) & exists).sum(-1).double()


@register
@dataclass(frozen=True)
class NonSensitivity(Metric):
    """The number of features with relevance that the model ignores, or without that it depends on.

    |{i: e_i = 0} Δ {i: f does not change with x_i}|. A feature counts as depended on if one of `draws`
    replacements by uniform noise over its range (token ids: the task's fill) changes the response, and as
    relevant if |e_i| > threshold times the map's root mean square.
    """

    draws: Count = 4
    """Replacements tried per group."""
    group: Count = 1
    """Features replaced together to save evaluations; they count as one."""
    threshold: NotNegative = 1e-5
    """Relevance, in units of the map's root mean square, up to which a feature has none."""
    response: Response = "logit"
    """The scale on which responses are read: "probability" or "logit"."""
    fill: Fill | None = None
    """What features become; None is uniform noise over the range, or the task's fill for token ids and
    for units that are switched off."""
    name: ClassVar[str] = "non_sensitivity"
    category: ClassVar[str] = "axiomatic"
    direction: ClassVar[Direction] = Direction.LOWER
    summary: ClassVar[str] = "Do exactly the features that the model ignores have no relevance?"
    assumes: ClassVar[str] = "a feature that never changes the output alone is ignored"
    misleads: ClassVar[str] = (
        "it counts the smallest dependence like the largest; redundant features look ignored"
    )
    paper: ClassVar[str] = "Nguyen and Martinez 2020"

    def fill_on(self, task: Task) -> Fill:
        moves = task.inputs.is_floating_point() and task.modality != "units"
        return self.fill or (UniformNoise() if moves else task.fill)

    def evaluate(self, task: Task, explanation: Explanation, context: Context) -> Outcome:
        groups = Groups(task.space.n_features, task.device, self.group)
        changed = torch.zeros(len(task), groups.count, dtype=torch.bool, device=task.device)
        same = _SAME.get(task.outputs.dtype, 1.5e-3)
        for draw in range(self.draws):
            responses = self.responses(task, groups, context.with_key(context.key / draw), self.group)
            scale = responses.abs().amax(-1, keepdim=True)
            changed |= (responses[:, 1:] - responses[:, :1]).abs() > same * scale
        relevant = in_blocks(self._relevant, explanation.values, explanation.valid)
        valid = torch.ones_like(relevant) if explanation.valid is None else explanation.valid
        exists = groups.pool(valid)
        wrong = disagreements(groups.pool(relevant & valid), changed, exists)
        return Outcome(wrong, details={"share of features": wrong / exists.sum(-1)})

    def _relevant(self, values: Tensor, valid: Tensor | None) -> Tensor:
        return rms_normalise(values, where=valid).abs() > self.threshold
