"""Focus: on a mosaic, how much of the positive relevance lies on the pictures of the explained class?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from veridical.functional._rows import in_blocks
from veridical.metrics import Context, Direction, Explanation, Outcome, Task, register
from veridical.metrics.localisation._common import (
    NOTHING_POSITIVE,
    LocalisationMetric,
    positive_share_inside,
    scored,
)


def made_of_quadrants(masks: Tensor) -> Tensor:
    """Which masks (N, ..., H, W) are, in each quarter of the image, all true or all false (N,)."""
    middle, centre = masks.shape[-2] // 2, masks.shape[-1] // 2
    whole = None
    for rows in (slice(0, middle), slice(middle, None)):
        for columns in (slice(0, centre), slice(centre, None)):
            quarter = masks[..., rows, columns].flatten(1)
            even = quarter.all(-1) | ~quarter.any(-1)
            whole = even if whole is None else whole & even
    assert whole is not None
    return whole


@register
@dataclass(frozen=True)
class Focus(LocalisationMetric):
    """On a 2 x 2 mosaic: sum of max(e, 0) on the quadrants of the explained class / sum of max(e, 0).

    Inputs are mosaics of four pictures, two of them of the explained class; the object masks mark those two
    quadrants. Uniform relevance scores 0.5. A mask that is not made of quadrants is flagged.
    """

    name: ClassVar[str] = "focus"
    direction: ClassVar[Direction] = Direction.HIGHER
    summary: ClassVar[str] = "On a mosaic, does relevance lie on the pictures of the explained class?"
    assumes: ClassVar[str] = "the model treats a mosaic as it treats its pictures"
    misleads: ClassVar[str] = "mosaics are out of distribution; two classes may share what is seen"
    paper: ClassVar[str] = "Arias-Duart et al. 2022"
    modalities: ClassVar[frozenset[str]] = frozenset({"image"})

    def evaluate(self, task: Task, explanation: Explanation, context: Context) -> Outcome:
        outcome = scored(task, explanation, positive_share_inside, NOTHING_POSITIVE, explanation.values)
        assert task.masks is not None
        labels = task.space.labels if task.space.per_sample else None

        def whole(masks: Tensor, own: Tensor | None) -> Tensor:
            space = task.space if own is None else replace(task.space, labels=own, valid=None)
            laid = space.expand(masks)
            return made_of_quadrants(laid.expand(*laid.shape[:-2], *task.inputs.shape[-2:]))

        odd = ~in_blocks(whole, task.masks, labels)
        return replace(outcome, flags={**outcome.flags, "the mask is not made of mosaic quadrants": odd})
