"""The verb: show what classes look like to a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from veridical.core.key import Key
from veridical.errors import unknown_name
from veridical.gef.classes import class_task
from veridical.gef.feature_visualisation import METHODS
from veridical.models.cost import Cost
from veridical.plots import as_image
from veridical.values.task import Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure


PHOTO = 64
"""Pixels of a side from which on a picture has room for several views of a thing."""
FOR_PHOTOS: dict[str, dict[str, Any]] = {
    "maco": {"views": 16, "smallest": 0.3, "rate": 0.3},
    "deep_viz": {"views": 8, "smallest": 0.5, "blur": 0.8, "blur_every": 2, "weakest": 0.0},
    "fourier": {"views": 16, "smallest": 0.5},
}
"""What makes classes of photographs plain to see, found by looking: many views, and smaller parts in them."""


@dataclass(frozen=True, eq=False, repr=False)
class Visualisation:
    """Images of classes in the model's input space, and what the model says to them."""

    images: Tensor
    """One per class (n, C, H, W)."""
    classes: tuple[int, ...]
    """The classes."""
    method: str
    """How they were made, in words."""
    logits: Tensor
    """The logit of its class for each image (n,)."""
    probabilities: Tensor
    """The probability of its class for each image (n,)."""
    cost: Cost
    """Rows asked."""

    def __len__(self) -> int:
        return len(self.classes)

    def plot(self, names: Sequence[str] | None = None, columns: int = 5) -> Figure:
        """All images in a grid, each with its class and the model's probability for it."""
        from matplotlib import pyplot

        across = min(columns, len(self))
        down = -(-len(self) // across)
        figure, grid = pyplot.subplots(
            down, across, figsize=(1.8 * across, 2.0 * down), squeeze=False, layout="constrained"
        )
        for cell in grid.flat:
            cell.set_axis_off()
        for cell, image, class_, share in zip(
            grid.flat, self.images, self.classes, self.probabilities.tolist(), strict=False
        ):
            picture = as_image(image).numpy()
            cell.imshow(picture, cmap="gray" if picture.ndim == 2 else None)
            cell.set_title(f"{names[class_] if names else class_} ({share:.2f})", fontsize=8)
        figure.suptitle(self.method, fontsize=9)
        return figure

    def __repr__(self) -> str:
        mean = float(self.probabilities.mean())
        return (
            f"Visualisation by {self.method} of {len(self)} classes, images {tuple(self.images.shape[1:])}, "
            f"mean probability of the class {mean:.2f}, cost {self.cost}"
        )


def visualise(
    task: Task,
    class_: int | Sequence[int] | None = None,
    method: str = "maco",
    steps: int = 100,
    seed: int = 0,
    **settings: Any,
) -> Visualisation:
    """Optimise an image for a class, for several, or (None) for all that the model predicts.

    `method` is "deep_viz", "fourier" or "maco"; further settings are the method's own. All classes are
    optimised together, and the same seed gives the same images. On images of at least 64 pixels a side each
    step looks at more and smaller views than elsewhere (`FOR_PHOTOS`: 8 or 16 rows per step and class),
    unless the settings say otherwise.
    """
    if method not in METHODS:
        raise unknown_name("method of visualisation", method, METHODS)
    classes = None if class_ is None else [class_] if isinstance(class_, int) else list(class_)
    on = class_task(task, classes)
    large = min(on.inputs.shape[2:], default=0) >= PHOTO
    own = {**FOR_PHOTOS[method], **settings} if large else settings
    explanation = METHODS[method](steps=steps, **own)(on, Key(seed))
    images = explanation.values.reshape(on.inputs.shape).to(on.inputs.dtype)
    outputs = task.uncounted(lambda: task.predictor.outputs(images))
    place = on.targets[:, None]
    return Visualisation(
        images,
        tuple(on.targets.tolist()),
        f"{method}, {steps} steps",
        outputs.gather(1, place)[:, 0],
        task.probabilities(outputs).gather(1, place)[:, 0],
        explanation.cost,
    )
