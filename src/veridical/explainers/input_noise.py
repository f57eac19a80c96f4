"""Noise on inputs: where it may fall, how it is drawn, and when a task has no inputs to put it on."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.models.embeddings import embedding_layer
from veridical.perturb.fills import extremes
from veridical.values.task import Task


def why_no_noise(task: Task) -> str | None:
    """Why inputs of this task cannot be moved a little, or None if they can."""
    if task.modality == "units":
        return "it moves inputs a little, and a unit is on or off"
    if task.inputs.is_floating_point():
        return None
    if task.modality == "text":
        if embedding_layer(task.predictor.model) is not None:
            return None
        return "token ids cannot be moved a little, and the model has no nn.Embedding layer to move instead"
    return f"it moves inputs a little and these are {task.inputs.dtype}; pass inputs.float()"


def movable(task: Task) -> Task:
    """The task whose inputs can be moved: itself, or for token ids the same task at its embeddings."""
    return task if task.inputs.is_floating_point() else task.at_embeddings()


def touched(task: Task) -> Tensor:
    """(N or 1, *shape) bool, to broadcast over inputs: elements of features that exist, so no padding."""
    space = task.space
    if space.valid is not None:
        return space.expand(space.valid)
    return space.labels >= 0 if space.per_sample else (space.labels >= 0)[None]


def _everywhere(task: Task) -> bool:
    """Whether every element belongs to a feature that exists, as far as that is known at once."""
    return task.space.valid is None and task.space.covers_inputs


def uniform_draws(task: Task, key: Key, draws: range) -> Tensor:
    """U(-1, 1) in every touched element, 0 elsewhere: (draws, N, *input shape)."""
    return _drawn(keyed.moves, task, key, draws)


def gaussian_draws(task: Task, key: Key, draws: range) -> Tensor:
    """N(0, 1) in every touched element, 0 elsewhere: (draws, N, *input shape)."""
    return _drawn(keyed.noise, task, key, draws)


def uniform_noise(task: Task, key: Key, draw: int) -> Tensor:
    """One of the `uniform_draws` (N, *input shape)."""
    return uniform_draws(task, key, range(draw, draw + 1))[0]


def _drawn(draw: Callable[..., Tensor], task: Task, key: Key, draws: range) -> Tensor:
    """Draws of all elements; where padding exists, feature by feature, so that more of it changes none."""
    space = task.space
    which = torch.arange(draws.start, draws.stop, device=task.device)
    found = draw(key, task.draw_ids, which, task.inputs[0].numel(), task.inputs.dtype).transpose(0, 1)
    if space.valid is not None and not space.per_sample:
        labels = space.labels.expand(space.input_shape).reshape(-1)
        by_feature = torch.argsort(labels, stable=True)
        found = torch.empty_like(found).index_copy_(-1, by_feature, found)
    found = found.reshape(len(draws), *task.inputs.shape)
    return found if _everywhere(task) else found.mul_(touched(task))


def own_range(task: Task) -> Tensor:
    """The largest less the smallest touched element of each sample, shaped to broadcast over inputs."""
    axes = tuple(range(1, task.inputs.dim()))
    if _everywhere(task):
        return task.inputs.amax(axes, keepdim=True) - task.inputs.amin(axes, keepdim=True)
    where = touched(task).expand(task.inputs.shape)
    high = torch.where(where, task.inputs, -torch.inf).amax(axes, keepdim=True)
    low = torch.where(where, task.inputs, torch.inf).amin(axes, keepdim=True)
    return high - low


def reference_range(task: Task) -> Tensor:
    """The range of each element over the reference rows (1, *shape)."""
    assert task.train is not None
    low, high = extremes(task.train)
    return (high - low)[None]


def touched_norm(task: Task, of: Tensor) -> Tensor:
    """The Euclidean norm of each row of a tensor (..., *shape of the inputs), over touched elements."""
    kept = of if _everywhere(task) else torch.where(touched(task), of, 0.0)
    return torch.linalg.vector_norm(kept.flatten(1 - task.inputs.dim()), dim=-1, dtype=torch.float64)
