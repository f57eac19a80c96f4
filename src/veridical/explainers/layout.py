"""From a model's own places (a coarse grid, the tokens of a prompt) to the features of a task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from veridical.core.space import Space
from veridical.errors import NotApplicableError
from veridical.models.inner_units import Switched
from veridical.models.prompts import PromptLogits, PromptModel
from veridical.values.task import Task

# --- maps -------------------------------------------------------------------------------------------------


def spatial_axes(task: Task) -> int:
    """How many spatial axes the input has: two for an image, three for a volume, one for a series."""
    return task.inputs.dim() - 2 if task.modality == "image" else 1


def spatial_size(task: Task) -> list[int]:
    """The input's height and width, or its number of steps."""
    if task.space.kind == "step":
        return [task.space.n_features]
    return list(task.inputs.shape[-spatial_axes(task) :])


def time_axis(task: Task) -> int:
    """The axis of the inputs that counts the steps of a series."""
    labels, shape = task.space.labels, task.inputs.shape[1:]
    if task.space.kind != "step":
        return labels.dim()
    # of one step, the axis that is no longer than its labels: channels share a label
    return 1 + max(range(labels.dim()), key=lambda axis: (labels.shape[axis], -shape[axis], axis))


def resized(maps: Tensor, size: list[int]) -> Tensor:
    """Maps (n, channels, *grid) at another size, linear between the centres of the cells."""
    mode = {1: "linear", 2: "bilinear", 3: "trilinear"}[len(size)]
    return F.interpolate(maps, size=size, mode=mode, align_corners=False)


def over_input(task: Task, maps: Tensor) -> Tensor:
    """Maps (..., *size) with the input's axes, of length 1 where they share a value over channels."""
    if task.space.kind == "step":
        return maps.reshape(*maps.shape[:-1], *task.space.labels.shape)
    lead = maps.dim() - spatial_axes(task)
    across = [1] * (task.inputs.dim() - 1 - spatial_axes(task))
    return maps.reshape(*maps.shape[:lead], *across, *maps.shape[lead:])


def as_features(task: Task, maps: Tensor) -> Tensor:
    """Maps (n, *size) as a task reads them; where channels are features apart, each has the pixel's value."""
    laid = over_input(task, maps)
    shape = tuple(task.space.labels.shape[1 if task.space.per_sample else 0 :])
    return laid if tuple(laid.shape[1:]) == shape else laid.expand_as(task.inputs)


# --- cells ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Cells:
    """Which cell each feature of a space lies in, and the space whose features are the cells."""

    of: Tensor
    """(V,): the cell of each feature."""
    space: Space

    @property
    def count(self) -> int:
        """How many cells there are."""
        return self.space.n_features

    def in_words(self) -> str:
        """A note beside a map of cells."""
        return f"{len(self.of)} features were joined into {self.count} cells of neighbours"

    def over(self, task: Task) -> Task:
        """The same task whose features are the cells."""
        return task.changed(space=self.space, masks=None, outputs=task.outputs)

    def shared_out(self, values: Tensor) -> Tensor:
        """The values of cells (n, cells) in equal shares to their features (n, V), so that sums stay."""
        sizes = torch.zeros_like(values[0]).index_add_(0, self.of, torch.ones_like(values[0])[self.of])
        return (values / sizes)[:, self.of]


# made once for a space: to look at its labels would wait for a GPU
_known: WeakKeyDictionary[Space, dict[object, Cells | None]] = WeakKeyDictionary()


def grid_cells(space: Space, across: int) -> Cells | None:
    """At most `across` cells along each axis of an image; None where features form no grid."""
    return _made(space, ("grid", across), lambda side, _: (min(across, side), _spread(side, across)))


def few_cells(space: Space, most: int) -> Cells | None:
    """Blocks of few features, of like size, that leave `most` cells; None where that takes no joining."""
    if space.n_features <= most:
        return None

    def split(side: int, sides: tuple[int, ...]) -> tuple[int, Tensor]:
        sizes = range(1, max(sides) + 1)
        block = next(k for k in sizes if prod(-(-n // k) for n in sides) <= max(1, most))
        return -(-side // block), _spread(side, -(-side // block))

    return _made(space, ("blocks", most), split)


def _spread(side: int, across: int) -> Tensor:
    return torch.arange(side) * min(across, side) // side


def _made(
    space: Space, name: object, split: Callable[[int, tuple[int, ...]], tuple[int, Tensor]]
) -> Cells | None:
    known = _known.setdefault(space, {})
    if name not in known:
        sides = _sides(space)
        known[name] = None if sides is None else _joined(space, [split(side, sides) for side in sides])
    return known[name]


def _joined(space: Space, axes: list[tuple[int, Tensor]]) -> Cells:
    cells = torch.zeros(1, dtype=torch.int64)
    for count, place in axes:
        cells = (cells[:, None] * count + place).flatten()
    labels = space.labels.cpu()
    laid = torch.where(labels < 0, -1, cells[labels.clamp(min=0)]).to(space.labels.device)
    joined = Space("patch", space.input_shape, prod(count for count, _ in axes), laid)
    return Cells(cells.to(space.labels.device), joined)


def _sides(space: Space) -> tuple[int, ...] | None:
    """How many features lie along each axis of an image, or None where they do not form a grid."""
    if space.kind not in ("pixel", "voxel", "patch") or space.per_sample or space.valid is not None:
        return None
    labels = space.labels[0].cpu()
    lines = [
        labels.movedim(axis, 0).reshape(len_axis, -1)[:, 0] for axis, len_axis in enumerate(labels.shape)
    ]
    sides = tuple(len(line.unique()) for line in lines)
    return sides if prod(sides) == space.n_features else None


def asks_prompts(task: Task) -> bool:
    """Whether the units are parts of a prompt, rather than of what is inside a model."""
    return isinstance(task.predictor.model, PromptModel | PromptLogits)


def at_logits(task: Task) -> Task:
    """The same prompts answered by logits: a normaliser carries nothing back. Other tasks stay themselves."""
    model = task.predictor.model
    if getattr(getattr(model, "module", model), "wanted", "log_probability") != "log_probability":
        raise NotApplicableError("perplexity and entropy are no logits, which this method follows")
    return _answered(task, PromptLogits)


def at_response(task: Task) -> Task:
    """The same prompts answered by the response alone, which can be followed. Other tasks stay themselves."""
    return _answered(task, partial(PromptLogits, normalised=True))


def _answered(task: Task, wrap: Callable[[nn.Module], nn.Module]) -> Task:
    model = task.predictor.model
    if isinstance(model, PromptModel):
        return task.changed(predictor=task.predictor.wrapped(wrap))
    if isinstance(model, Switched) and isinstance(model.module, PromptModel):
        return task.changed(predictor=task.predictor.wrapped(partial(_inside, wrap=wrap)))
    return task


def _inside(module: nn.Module, wrap: Callable[[nn.Module], nn.Module]) -> nn.Module:
    assert isinstance(module, Switched)
    return module.around(wrap)


def passes(task: Task) -> int:
    """How often the model reads a prompt for one answer: twice where the foil differs within."""
    model = task.predictor.model
    return 2 if isinstance(model, PromptLogits) and model.two_passes else 1


def places(task: Task) -> int:
    """Tokens that the model reads: those of the prompt, and of the answer but its last."""
    side = _side(task)
    return side["tokens"].shape[1] + side["answer"].shape[1] - 1


def reading_places(task: Task) -> Tensor:
    """The places (n, L) whose next token is judged: the last of the prompt, for the answer's first token."""
    side = _side(task)
    before = side["tokens"].shape[1] - 1
    return torch.nn.functional.pad(side["judged"], (before, 0))


def pooled(tokens: Tensor, task: Task) -> Tensor:
    """Values of tokens (n, L) added up over each unit (n, V); what belongs to no unit is left out."""
    unit = _side(task)["unit"]
    found = tokens.new_zeros(len(tokens), task.space.n_features + 1)
    spare = torch.where(unit < 0, task.space.n_features, unit)
    return found.scatter_add(1, spare, tokens[:, : unit.shape[1]])[:, :-1]


def lengths(task: Task) -> Tensor:
    """How many tokens each unit has (n, V)."""
    return pooled(torch.ones_like(_side(task)["unit"], dtype=torch.float64), task)


def _side(task: Task) -> dict[str, Tensor]:
    assert isinstance(task.side, dict)
    return task.side
