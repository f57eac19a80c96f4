"""Continuity: does the map move smoothly as the image is translated?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from veridical.metrics import Count, ExplainerMetric, Outcome, register
from veridical.metrics.re_explaining import stacked
from veridical.metrics.robustness._common import explained_pairs, nan_where_any, worst
from veridical.metrics.types import Context, Curve, Direction, Explainer, Task
from veridical.perturb.fills import fill_state


def translated(images: Tensor, background: Tensor, pixels: int) -> Tensor:
    """Images moved to the right; what they leave free shows the background."""
    moved = background.expand_as(images).clone()
    moved[..., pixels:] = images[..., : images.shape[-1] - pixels]
    return moved


@register
@dataclass(frozen=True)
class Continuity(ExplainerMetric):
    """max over translations t of ‖e(x) - e(x_t)‖_1 / ‖x - x_t‖_2 (Montavon et al. 2018, section 7).

    x_t is the image moved t = pixels, 2 pixels, ..., steps * pixels to the right; the strip it leaves shows
    the task's fill. The curve holds the ratio at every translation.
    """

    steps: Count = 4
    """Translations per sample."""
    pixels: Count = 1
    """Pixels from one translation to the next."""
    normalise: bool = True
    """Whether maps are divided by their root mean square first."""
    name: ClassVar[str] = "continuity"
    category: ClassVar[str] = "robustness"
    direction: ClassVar[Direction] = Direction.LOWER
    summary: ClassVar[str] = "Does the map change smoothly as the image is translated?"
    assumes: ClassVar[str] = "nearly equivalent images deserve nearly equal explanations"
    misleads: ClassVar[str] = "a map that rightly follows its object moves, and every move counts as change"
    paper: ClassVar[str] = "Montavon et al. 2018"
    modalities: ClassVar[frozenset[str]] = frozenset({"image"})
    needs: ClassVar[frozenset[str]] = frozenset({"explainer"})

    def inapplicable_reason(self, task: Task) -> str | None:
        reason = super().inapplicable_reason(task)
        if reason is not None:
            return reason
        width = task.inputs.shape[-1]
        if self.steps * self.pixels >= width:
            return f"it moves images by {self.steps * self.pixels} pixels and these are {width} wide"
        if task.fill.looks_at_mask:
            return f"fill '{task.fill.name}' has no background to show behind a moved image"
        return None

    def evaluate(self, task: Task, explainer: Explainer, context: Context) -> Outcome:
        # what the strips show that moved images leave free (N, *shape)
        state, own = fill_state(task, task.fill), (context.key / "fill").of("fill")
        background = task.fill.background(state, task.inputs, task.draw_ids, own)[:, 0]

        def change(near: Task, clean: Tensor, maps: Tensor) -> Tensor:
            apart = near.inputs.unflatten(0, (-1, len(task))) - task.inputs
            way = torch.linalg.vector_norm(apart.flatten(2), dim=-1, dtype=torch.float64)
            return (maps - clean).abs().sum(-1) / way.masked_fill_(way == 0, torch.nan)

        variants = partial(self._moved, task, background)
        _, table, flags = explained_pairs(
            task, explainer, context, variants, self.steps, self.normalise, change, first_number=1
        )
        flags["no translation changes the image"] = table.isnan().all(-1) & ~flags["no explanation"]
        moved = torch.arange(1 + self.steps, device=task.device)[1:] * self.pixels
        curve = Curve(moved, table, "pixels moved", "change of the map over that of the image")
        return Outcome(nan_where_any(worst(table), flags), flags, curve)

    def _moved(self, task: Task, background: Tensor, which: range) -> Task:
        """The samples after each of these moves, one copy of all after the other; 0 is no move."""
        if which == range(1):
            return task
        near = [translated(task.inputs, background, t * self.pixels) if t else task.inputs for t in which]
        return stacked(task, len(which), torch.cat(near))
