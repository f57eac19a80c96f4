"""GEF's pulled-back energy, through a fitted response of the map to the outputs."""

from __future__ import annotations

import torch
from torch import Tensor

from veridical.core.key import Key
from veridical.gef.found import Moved
from veridical.gef.setting import Setting
from veridical.gef.worlds import Worlds
from veridical.values.task import Task

SMALL_STEP = 1e-3
"""Noise of the models around a point of the path."""


def jacobian(setting: Setting, sigma: float, draw: int, level: int, clean: Tensor) -> Moved:
    """The energy T sum_t ||J_t dy_t||^2 along the same path (GEF eq. 12-13, dimensions made consistent).

    J_t is the minimum-norm least-squares response of the map to the outputs over K weight perturbations
    N(1, 1e-3^2) around theta_t, so J_t dy = dE^T a with dY^T a = dy: no V x C matrix is ever formed.
    """
    task = setting.task
    narrow = task.n_outputs > 20 or task.head == "generation"
    count = neighbours(task)
    energy = torch.zeros(len(task), dtype=torch.float64, device=task.device)
    fits, spans = [], []
    before = setting.per_sample(setting.judged.outputs.double())
    answers, noise = setting.judged.outputs, setting.noise_key(draw, level)
    for t in range(1, setting.steps + 1):
        world = setting.world(sigma, noise, step=t / setting.steps)
        first = setting.values(world, *setting.path_key(draw, level, t))
        answers = setting.outputs(world)
        outputs = setting.per_sample(answers.double())
        maps = first.new_empty(1 + count, *first.shape, dtype=torch.float64)
        maps[0] = first
        near_answers = answers.new_empty(count, *answers.shape)
        around = Worlds(world, setting.perturb, setting.latest.draw)
        for k in range(count):
            near = around.at(SMALL_STEP, near_key(noise, t, k))
            maps[1 + k] = setting.values(near, *setting.path_key(draw, level, t, k))
            near_answers[k] = setting.outputs(near)
        response = setting.per_sample(near_answers.double()).transpose(0, 1) - outputs[:, None]
        step = outputs - before
        if narrow:
            response, step = (_own(task, value) for value in (response, step))
        here, *around_here = setting.comparable(maps)
        moved = torch.stack(around_here, 1).sub_(here[:, None])
        # answers that are not finite fit nothing, and their draw is dropped
        broken = ~torch.cat([response.flatten(1), step], 1).isfinite().all(1)
        response, step = (v.nan_to_num(0.0, 0.0, 0.0) for v in (response, step))
        length, fit, in_span = least_squares_step(response, moved, step)
        energy = energy + torch.where(broken, torch.nan, length.square())
        fits.append(fit)
        spans.append(in_span)
        before = outputs
    setting.judge(answers)
    return Moved(setting.steps * energy, torch.stack(fits).mean(0), torch.stack(spans).mean(0))


def neighbours(task: Task) -> int:
    """How many perturbations around a point show how the map responds to the outputs."""
    return 5 if task.n_outputs > 20 else max(5, 2 * task.n_outputs)


def near_key(key: Key, t: int, k: int) -> Key:
    """The key of the noise around the t-th step of a path."""
    return key / "jacobian" / t / k


def least_squares_step(outputs: Tensor, maps: Tensor, step: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """||J step|| for the minimum-norm J with maps (N, K, V) ~ outputs (N, K, C) J^T; its fit and its reach.

    The fit is the R^2 of each perturbation predicted from the others; the reach is the share of ||step||^2
    inside the span of the outputs seen.
    """
    inverse = torch.linalg.pinv(outputs, rtol=1e-9)
    weights = (inverse.mT @ step[..., None])[..., 0]
    gram = maps @ maps.mT
    length = (weights[:, None] @ gram @ weights[..., None])[:, 0, 0].clamp(min=0).sqrt()
    hat = outputs @ inverse
    rest = torch.eye(hat.shape[-1], dtype=hat.dtype, device=hat.device) - hat
    alone = 1 - hat.diagonal(dim1=-2, dim2=-1)
    left_out = rest / alone.clamp(min=1e-12)[..., None]
    missed = (left_out @ gram @ left_out.mT).diagonal(dim1=-2, dim2=-1).sum(-1)
    total = gram.diagonal(dim1=-2, dim2=-1).sum(-1)
    fit = torch.where(total > 0, 1 - missed / total.clamp(min=1e-300), torch.nan)
    reached = (outputs.mT @ weights[..., None])[..., 0]
    whole = step.square().sum(-1)
    in_span = torch.where(whole > 0, reached.square().sum(-1) / whole.clamp(min=1e-300), torch.nan)
    return length, fit, in_span


def _own(task: Task, values: Tensor) -> Tensor:
    """Keep the explained output only, as one column."""
    place = task.targets.reshape(-1, *[1] * (values.dim() - 1)).expand(*values.shape[:-1], 1)
    return values.gather(-1, place)
