"""Noise on inputs: where it may fall, how it is drawn, and when a task has no inputs to put it on."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from veridical.core import key as keyed
from veridical.functional.devices import at_a_time
from veridical.metrics import Key, Task
from veridical.models.embeddings import embedding_layer
from veridical.perturb.fills import extremes


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
    """U[-1, 1) in every touched element, 0 elsewhere: (draws, N, *input shape)."""
    share = _drawn(
        task, draws, lambda which, size: keyed.uniform(key, task.draw_ids, which, size, task.inputs.dtype)
    )
    share.mul_(2.0).sub_(1.0)
    return share if _everywhere(task) else share.mul_(touched(task))


def gaussian_draws(task: Task, key: Key, draws: range) -> Tensor:
    """N(0, 1) in every touched element, 0 elsewhere, by Box and Muller: (draws, N, *input shape).

    Radius and angle come from two streams, so that the draw of an element does not depend on how many
    elements there are.
    """

    def normal(which: Tensor, size: int) -> Tensor:
        radius, angle = (
            keyed.uniform(key / part, task.draw_ids, which, size, torch.float64)
            for part in ("radius", "angle")
        )
        radius.neg_().log1p_().mul_(-2.0).sqrt_()
        return radius.mul_(angle.mul_(2.0 * math.pi).cos_()).to(task.inputs.dtype)

    noise = _drawn(task, draws, normal)
    return noise if _everywhere(task) else noise.mul_(touched(task))


def uniform_noise(task: Task, key: Key, draw: int) -> Tensor:
    """One of the `uniform_draws` (N, *input shape)."""
    return uniform_draws(task, key, range(draw, draw + 1))[0]


def _drawn(task: Task, draws: range, draw: Callable[[Tensor, int], Tensor]) -> Tensor:
    """`draw(numbers of draws (K,), elements)` as (N, K, elements) for all draws, a few at a time."""
    size = task.inputs[0].numel()
    out = task.inputs.new_empty(len(draws), len(task), size)
    # a hash takes several numbers of 64 bits on its way: on a CPU they should stay in its cache
    cells = at_a_time(task.device, 2**20, 2**24)
    few = max(1, cells // (len(task) * size))
    for at in range(0, len(draws), few):
        some = draws[at : at + few]
        which = torch.arange(some.start, some.stop, device=task.device)
        out[at : at + few] = draw(which, size).transpose(0, 1)
    return _by_element(task, out)


def _by_element(task: Task, draws: Tensor) -> Tensor:
    """Lay draws over inputs; where padding exists, feature by feature, so that more of it changes no draw."""
    space = task.space
    if space.valid is not None and not space.per_sample:
        labels = space.labels.expand(space.input_shape).reshape(-1)
        by_feature = torch.argsort(labels, stable=True)
        draws = torch.empty_like(draws).index_copy_(-1, by_feature, draws)
    return draws.reshape(len(draws), *task.inputs.shape)


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
