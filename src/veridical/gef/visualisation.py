"""Pictures of what a class looks like to a model: inputs optimised to raise its logit.

`visualise` makes them; `class_task` makes a task whose samples are classes, on which GEF scores them. A
method (`FeatureVisualisation`) says how an image is made of its parameters; the ascent is written once. All
randomness is keyed by the class, and classes do not touch one another, so a batch of classes gives what they
give one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from veridical.core import key as keyed
from veridical.core.allowed import Count, PartOf, Positive
from veridical.core.facts import train_fact
from veridical.core.key import Key
from veridical.core.settings import checked
from veridical.core.space import Space
from veridical.errors import InputError, NotApplicableError
from veridical.explainers import Explainer
from veridical.explainers.base import selected
from veridical.models.context import Context
from veridical.models.predictor import call, take_side
from veridical.plots import as_image, pyplot
from veridical.values.explanation import Explanation
from veridical.values.task import Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PHOTO = 64
"""Pixels of a side from which on a picture has room for several views of a thing."""
FOR_PHOTOS: dict[str, Any] = {"views": 16, "smallest": 0.3, "rate": 0.3}
"""What makes classes of photographs plain to see: many views, and smaller parts in them."""


@checked
def visualise(
    task: Task,
    class_: int | Sequence[int] | None = None,
    steps: Count = 100,
    seed: int = 0,
    **settings: Any,
) -> Explanation:
    """Optimise an image for a class, for several, or (None) for all that the model predicts.

    The method is `Maco`, and further settings are its own. All classes are optimised together, and the same
    seed gives the same images. On images of at least 64 pixels a side each step takes more and smaller views
    than elsewhere (`FOR_PHOTOS`: 16 rows per step and class), unless the settings say otherwise.

    Parameters
    ----------
    task : Task
        A task of images.
    class_ : int or sequence of int, optional
        The classes; by default all that are predicted.
    steps : int
        Steps of the optimisation.
    seed : int
        Seed of its start and views.
    **settings
        Settings of `Maco`.

    Returns
    -------
    Explanation
        One image a class; `maps()` has them as (n, C, H, W), `plot_classes` draws them.

    Raises
    ------
    InputError
        If a class is not predicted in the reference rows.
    """
    on = class_task(task, [class_] if isinstance(class_, int) else class_)
    if min(on.inputs.shape[2:], default=0) >= PHOTO:
        settings = {**FOR_PHOTOS, **settings}
    return Maco(steps=steps, **settings)(on, Key(seed))


def plot_classes(pictures: Explanation, names: Sequence[str] | None = None) -> Figure:
    """Draw what `visualise` made: the images in a row, each with its class.

    Parameters
    ----------
    pictures : Explanation
        One image a class.
    names : sequence of str, optional
        Names of the classes, by their number.

    Returns
    -------
    Figure
        The figure of matplotlib.
    """
    classes = pictures.targets.tolist()
    figure, grid = pyplot().subplots(1, len(classes), figsize=(1.8 * len(classes), 2.2), squeeze=False)
    for cell, image, class_ in zip(grid[0], pictures.maps(), classes, strict=True):
        picture = as_image(image).numpy()
        cell.imshow(picture, cmap="gray" if picture.ndim == 2 else None)
        cell.set_title(names[class_] if names else class_, fontsize=8)
        cell.set_axis_off()
    return figure


# --- tasks of classes -----------------------------------------------------------------


@checked
def class_task(task: Task, classes: Sequence[int] | None = None, rows_per_class: Count = 32) -> Task:
    """The same model where each sample stands for a class, for explanations that have no input.

    Its `members` are the reference rows (the task's `train`, else its inputs) that the model predicts to be
    of these classes, at most `rows_per_class` of each: GEF's model distortion of class c is the mean over
    them of |y_c - y_hat_c|. By default all classes that are predicted at all. The features are the elements
    of an input. Metrics and explainers that need an input refuse such a task.

    Parameters
    ----------
    task : Task
        A task whose model is a torch module.
    classes : sequence of int, optional
        The classes; by default all that are predicted.
    rows_per_class : int
        Most reference rows of each class.

    Returns
    -------
    Task
        A task with one sample for each class.

    Raises
    ------
    NotApplicableError
        Where outputs are no classes, or inputs no real numbers.
    """
    if task.members is not None:
        raise InputError("the samples of this task are classes already")
    if task.head in ("regression", "generation"):
        raise NotApplicableError(f"a {task.head} has no classes")
    if task.modality == "text" or not task.inputs.is_floating_point():
        raise NotApplicableError("tokens have no picture; classes are visualised on inputs of real numbers")
    rows = task.inputs if task.train is None else task.train
    side = task.side if task.train is None else task.train_side
    if len(side):
        raise NotApplicableError("the model takes side inputs, which a class does not have")
    predicted = task.uncounted(lambda: task.predictor.outputs(rows)).argmax(-1)
    found = predicted.unique().tolist()
    chosen = found if classes is None else [int(c) for c in classes]
    if not chosen or len(set(chosen)) != len(chosen) or not set(chosen) <= set(found):
        raise InputError(
            f"classes are different numbers, each predicted in one of the {len(rows)} reference rows "
            f"({found[:12]}); got {chosen}; for others give the task train=... with such rows"
        )
    index = _members(predicted, chosen, rows_per_class)
    shape = tuple(rows.shape[1:])
    common: dict[str, Any] = {"alone": True, "labels": None, "masks": None}
    members = task.changed(
        **common,
        inputs=rows[index],
        side=take_side(side, index),
        ids=index,
        space=Space.of(rows).to(task.device),
        targets=predicted[index],
    )
    targets = torch.tensor(chosen, device=task.device)
    return task.changed(
        **common,
        # the mean row stands in where an input is asked for its shape
        inputs=rows.mean(0, keepdim=True).expand(len(chosen), *shape).contiguous(),
        ids=targets,
        space=Space.elements(shape).to(task.device),
        targets=targets,
        members=members,
    )


def _members(predicted: Tensor, classes: Sequence[int], most: int) -> Tensor:
    """A keyed choice of at most `most` rows of each class, in their order: sets are often sorted."""
    order = keyed.bits(Key(0) / "members", torch.arange(len(predicted)), 0, 1)[:, 0].argsort()
    own = predicted.cpu()[order]
    picked = [order[own == c][:most] for c in classes]
    return torch.cat(picked).sort().values.to(predicted.device)


# --- methods --------------------------------------------------------------------------


@dataclass(frozen=True)
class FeatureVisualisation(Explainer):
    """Base of the visualisers: `steps` of ascent on the logit of a class, from keyed noise."""

    steps: Count = 100
    """Steps of ascent."""
    rate: Positive = 0.05
    """Adam's step size."""
    views: Count = 4
    """Random crops per picture and step, over which the gradient is averaged."""
    smallest: PartOf = 0.8
    """The smallest share of a side that a view shows at full size; 1 only shifts."""
    modalities: ClassVar[frozenset[str]] = frozenset({"image"})
    needs: ClassVar[frozenset[str]] = frozenset({"gradient"})
    stochastic: ClassVar[bool] = True
    _one_key: ClassVar[bool] = True

    def inapplicable_reason(self, task: Task) -> str | None:
        if task.members is None:
            return (
                "it pictures classes, not inputs; give it vd.gef.class_task(task), or call vd.gef.visualise"
            )
        if len(task.inputs.shape) != 4:
            return "it pictures classes of image models"
        return None if task.differentiable else "it needs gradients and the model is not a torch function"

    def rows_per_sample(self, task: Task) -> int:
        return self.views

    def start(self, task: Task, key: Key) -> Tensor:
        """The parameters before the first step (n, ...)."""
        raise NotApplicableError(f"visualiser '{self.name}' does not say where it starts")

    def image(self, parameters: Tensor, task: Task) -> Tensor:
        """The images (n, C, H, W) that these parameters stand for."""
        return parameters

    def tidied(self, parameters: Tensor, gradient: Tensor, step: int) -> Tensor:
        """The parameters after a step, pulled towards plausible pictures."""
        return parameters

    def attribute(self, task: Task, context: Context) -> Tensor:
        parameters = self.start(task, context.key).requires_grad_(True)
        # Adam, so that the rate means the same whatever the model's scale
        optimiser = torch.optim.Adam([parameters], lr=self.rate, eps=1e-12, maximize=True)
        for step in range(self.steps):
            key = context.key / "view" / step
            seen = seen_from(self.image(parameters, task), task, self.views, key, self.smallest)
            pieces = seen.split(task.predictor.rows)
            outputs = torch.cat([call(task.predictor.view, piece) for piece in pieces])
            logits = selected(outputs, task.targets.repeat_interleave(self.views))
            (parameters.grad,) = torch.autograd.grad(logits.sum() / self.views, parameters)
            optimiser.step()
            with torch.no_grad():
                parameters.copy_(self.tidied(parameters, parameters.grad, step))
        with torch.no_grad():
            return self.image(parameters, task)


@dataclass(frozen=True)
class Maco(FeatureVisualisation):
    """Ascent on the phases only; the magnitudes are those of the mean spectrum of the reference rows (MACO).

    Magnitudes are those of colours made independent, and the picture has the colours put together again; it
    is brought to the value range by a sigmoid of its standardised values.
    """

    rate: Positive = 0.1
    """Adam's step size, on phases in radians."""
    name: ClassVar[str] = "maco"
    summary: ClassVar[str] = "phases optimised for a class under the magnitudes of real images"
    paper: ClassVar[str] = "Fel et al. 2023"

    def start(self, task: Task, key: Key) -> Tensor:
        channels, height, width = task.inputs.shape[1:]
        return torch.pi * (
            2 * drawn_for_classes(keyed.uniform, task, key / "start", (channels, height, width // 2 + 1)) - 1
        )

    def image(self, parameters: Tensor, task: Task) -> Tensor:
        height, width = task.inputs.shape[2:]
        magnitude = mean_magnitude(task)
        plain = torch.fft.irfft2(torch.polar(magnitude.expand_as(parameters), parameters), s=(height, width))
        plain = in_colour(plain, task)
        middle = plain.mean((1, 2, 3), keepdim=True)
        spread = plain.std((1, 2, 3), keepdim=True, correction=0) + 1e-6
        low, high = value_range(task)
        return low + (high - low) * torch.sigmoid((plain - middle) / spread)


def seen_from(images: Tensor, task: Task, views: int, key: Key, smallest: float = 0.8) -> Tensor:
    """Each image `views` times, each a part of it at full size, keyed by its class.

    A part has between `smallest` and 1 of the image's sides and lies anywhere in it, or a little beyond its
    edge. A single view is the image itself.
    """
    if views == 1:
        return images
    drawn = keyed.uniform(key, task.draw_ids, torch.arange(views, device=task.device), 3, images.dtype)
    shrink = 1 - (1 - smallest) * drawn[..., 0]
    shift = (drawn[..., 1:] * 2 - 1) * (1 - shrink + 0.05)[..., None]
    theta = torch.zeros(*drawn.shape[:2], 2, 3, dtype=images.dtype, device=images.device)
    theta[..., 0, 0] = theta[..., 1, 1] = shrink
    theta[..., 2] = shift
    repeated = images.repeat_interleave(views, 0)
    grid = F.affine_grid(theta.flatten(0, 1), list(repeated.shape), align_corners=False)
    return F.grid_sample(repeated, grid, padding_mode="reflection", align_corners=False)


def drawn_for_classes(draw: Callable[..., Tensor], task: Task, key: Key, shape: tuple[int, ...]) -> Tensor:
    """Draws of this shape for each class."""
    size = torch.Size(shape).numel()
    return draw(key, task.draw_ids, 0, size, task.inputs.dtype).reshape(-1, *shape)


# --- what the pictures of a task are like ---------------------------------------------


@train_fact
def value_range(task: Task) -> tuple[Tensor, Tensor]:
    """The smallest and largest value of each channel in the reference rows (C, 1, 1)."""
    rows = _reference_rows(task).movedim(1, 0).flatten(1)
    return rows.amin(1)[:, None, None], rows.amax(1)[:, None, None]


@train_fact
def mean_magnitude(task: Task) -> Tensor:
    """The mean over the reference rows of the magnitude of their spectra (C, H, W // 2 + 1).

    Of channels made independent first, as `in_colour` puts them together again.
    """
    apart = torch.einsum("dc,nchw->ndhw", torch.linalg.inv(colours(task)), _reference_rows(task))
    return torch.fft.rfft2(apart).abs().mean(0)


@train_fact
def colours(task: Task) -> Tensor:
    """The square root (C, C) of the covariance of the channels over the reference rows, its largest row 1.

    Neighbouring values of real images differ little between channels; a picture whose channels are
    optimised apart is a rainbow. With one channel there is nothing to put together.
    """
    if task.inputs.shape[1] == 1:
        return torch.ones(1, 1, dtype=task.inputs.dtype, device=task.device)
    rows = _reference_rows(task)
    flat = rows.movedim(1, 0).flatten(1).double()
    apart = flat - flat.mean(1, keepdim=True)
    values, vectors = torch.linalg.eigh(apart @ apart.mT / apart.shape[1])
    root = vectors * values.clamp(min=1e-6 * float(values.max()) + 1e-12).sqrt()
    return (root / root.norm(dim=1).max()).to(rows.dtype)


def in_colour(images: Tensor, task: Task) -> Tensor:
    """Images (n, C, H, W) of independent channels with the channels put together as in real ones."""
    return images if images.shape[1] == 1 else torch.einsum("cd,ndhw->nchw", colours(task), images)


def _reference_rows(task: Task) -> Tensor:
    if task.train is not None:
        return task.train[:1024]
    return task.inputs if task.members is None else task.members.inputs
