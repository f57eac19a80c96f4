"""Continuity: does the map move smoothly as the image is translated?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from veridical.functional import rms_normalise
from veridical.metrics import Count, ExplainerMetric, Outcome, register
from veridical.metrics.re_explaining import explained_variants, explaining, stacked
from veridical.metrics.robustness._common import map_flags, nan_where_any, worst
from veridical.metrics.types import Context, Curve, Direction, Explainer, Key, Task
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
        background = self._background(task, context.key)
        variants = partial(self._moved, task, background)
        rows = []
        with explaining(explainer, context, task) as explain:
            every = explained_variants(
                explain, explainer, task, self.steps, variants, context.key, first_number=1
            )
            for which, near, values in every:
                maps = self._comparable(values, task)
                if not which.start:
                    flags, clean = map_flags(explain, len(task)), maps[0]
                moves = len(which) - (not which.start)
                if moves:
                    apart = near.inputs.unflatten(0, (-1, len(task)))[-moves:] - task.inputs
                    way = torch.linalg.vector_norm(apart.flatten(2), dim=-1, dtype=torch.float64)
                    change = (maps[-moves:] - clean).abs().sum(-1)
                    rows.append(change / way.masked_fill_(way == 0, torch.nan))
        table = torch.cat(rows).T.contiguous()
        flags["no translation changes the image"] = table.isnan().all(-1) & ~flags["no explanation"]
        moved = torch.arange(1 + self.steps, device=task.device)[1:] * self.pixels
        curve = Curve(moved, table, "pixels moved", "change of the map over that of the image")
        return Outcome(nan_where_any(worst(table), flags), flags, curve)

    def _background(self, task: Task, key: Key) -> Tensor:
        """What the strips show that moved images leave free (N, *shape)."""
        state, own = fill_state(task, task.fill), (key / "fill").of("fill")
        return task.fill.background(state, task.inputs, task.draw_ids, own)[:, 0]

    def _moved(self, task: Task, background: Tensor, which: range) -> Task:
        """The samples after each of these moves, one copy of all after the other; 0 is no move."""
        if which == range(1):
            return task
        near = [translated(task.inputs, background, t * self.pixels) if t else task.inputs for t in which]
        return stacked(task, len(which), torch.cat(near))

    def _comparable(self, values: Tensor, task: Task) -> Tensor:
        if self.normalise:
            return rms_normalise(values, where=task.space.valid)
        values = values.double()
        return values if task.space.valid is None else values.masked_fill(~task.space.valid, 0.0)
