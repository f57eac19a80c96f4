"""What is explained of a detector or a segmentation: one object, one region, as `output=` of a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from veridical.errors import InputError, ShapeError


def overlap(boxes: Tensor, box: Tensor) -> Tensor:
    """Intersection over union of boxes (..., 4) with one, as corners (x0, y0, x1, y1).

    >>> overlap(torch.tensor([[0.0, 0.0, 2.0, 1.0]]), torch.tensor([1.0, 0.0, 2.0, 1.0]))
    tensor([0.5000])
    """
    low, high = torch.maximum(boxes[..., :2], box[:2]), torch.minimum(boxes[..., 2:], box[2:])
    shared = (high - low).clamp(min=0).prod(-1)
    areas = (boxes[..., 2:] - boxes[..., :2]).clamp(min=0).prod(-1) + (box[2:] - box[:2]).prod()
    return shared / (areas - shared).clamp(min=torch.finfo(shared.dtype).tiny)


@dataclass(frozen=True)
class BoxScore:
    """How surely the object in a box is found: the largest overlap of a proposal with it, times its score.

    One number an image, 0 where nothing is proposed there; the box is of one image, so a task holds variants
    of one. The model answers boxes (N, K, 4) and scores (N, K), or (N, K, classes) of which `label` is taken;
    or a list with a dictionary of "boxes", "scores" and "labels" for each image.
    """

    box: tuple[float, float, float, float]
    """Its corners (x0, y0, x1, y1)."""
    label: int | None = None
    """The class that a proposal must have; None takes any."""

    def __call__(self, answer: Any) -> Tensor:
        """Scores (N, 1)."""
        found = []
        for boxes, scores, labels in _proposals(answer):
            if labels is not None and self.label is not None:
                boxes, scores = boxes[labels == self.label], scores[labels == self.label]
            elif scores.dim() == 2:
                scores = scores.amax(-1) if self.label is None else scores[:, self.label]
            sure = overlap(boxes, torch.tensor(self.box).to(boxes)) * scores
            found.append(sure.amax() if len(sure) else scores.new_zeros(()))
        return torch.stack(found)[:, None]


@dataclass(frozen=True)
class InstanceClasses:
    """The class scores (N, classes) of the proposal that overlaps most with a box: why this class, here?"""

    box: tuple[float, float, float, float]
    """The corners (x0, y0, x1, y1) of the instance."""

    def __call__(self, answer: Any) -> Tensor:
        """Scores (N, classes)."""
        found = []
        for boxes, scores, _ in _proposals(answer):
            if scores.dim() != 2:
                raise ShapeError(
                    f"scores have shape {tuple(scores.shape)}; a class is chosen of (K, classes)"
                )
            found.append(scores[overlap(boxes, torch.tensor(self.box).to(boxes)).argmax()])
        return torch.stack(found)


@dataclass(frozen=True, eq=False)
class MaskMean:
    """The mean answer over a region, by class (N, classes), of a segmentation (N, classes, H, W)."""

    mask: Tensor
    """Which pixels (H, W) belong to the region."""

    def __call__(self, answer: Any) -> Tensor:
        """Scores (N, classes)."""
        found = answer["out"] if isinstance(answer, Mapping) else getattr(answer, "logits", answer)
        if found.shape[-2:] != self.mask.shape:
            raise ShapeError(
                f"the model answers pixels {tuple(found.shape[-2:])}, the mask has {tuple(self.mask.shape)}"
            )
        if not bool(self.mask.any()):
            raise InputError("the mask is empty: it says which pixels to explain")
        return found[..., self.mask.to(found.device).bool()].mean(-1)


def _proposals(answer: Any) -> list[tuple[Tensor, Tensor, Tensor | None]]:
    """Boxes (K, 4), scores (K,) or (K, classes) and labels, where there are any, of each image."""
    if isinstance(answer, Sequence) and len(answer) and isinstance(answer[0], Mapping):
        return [(one["boxes"], one["scores"], one.get("labels")) for one in answer]
    boxes, scores = answer[:2]
    if boxes.dim() != 3 or boxes.shape[-1] != 4 or scores.shape[:2] != boxes.shape[:2]:
        raise ShapeError(
            f"expected boxes (N, K, 4) and scores (N, K) or (N, K, classes), got {tuple(boxes.shape)} and "
            f"{tuple(scores.shape)}"
        )
    return [(*pair, None) for pair in zip(boxes, scores, strict=True)]
