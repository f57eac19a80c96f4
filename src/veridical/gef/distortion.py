"""How far explanations move along the noise path, with how far the model moves beside it.

All forms share one signature, (setting, sigma, draw, level, clean map) -> Moved. Here are those that compare
maps: `fast` and `arc`; `jacobian` and `reference` have a file each.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from veridical.gef.batched_distances import Pending
from veridical.gef.found import Moved
from veridical.gef.setting import Setting

Form = Literal["fast", "reference", "jacobian", "arc"]


class Fast:
    """The distance between the maps of the clean and the perturbed world (GEF eq. 6), told at the end."""

    def __init__(self) -> None:
        self._pending: Pending | None = None

    def __call__(self, setting: Setting, sigma: float, draw: int, level: int, clean: Tensor) -> Moved:
        if self._pending is None:
            self._pending = setting.pending(lambda maps: setting.between(clean.expand_as(maps), maps))
        world = setting.world(sigma, setting.noise_key(draw, level))
        self._pending.add(setting.values(world, draw, level))
        setting.answers.add(setting.outputs(world))
        return Moved()

    def moved(self) -> Tensor | None:
        """The distances (levels, N), those of one draw after the other."""
        return None if self._pending is None else self._pending.all()


def arc(setting: Setting, sigma: float, draw: int, level: int, clean: Tensor) -> Moved:
    """The length of the explanation's own path as the weights walk straight to the noisy ones.

    sum_t ||e_t - e_{t-1}|| over `steps` steps; one key serves the whole path of a stochastic explainer.
    """
    before = clean
    if setting.redraws:
        before = setting.explain(setting.task, *setting.path_key(draw, level, 0))

    def onwards(maps: Tensor) -> Tensor:
        nonlocal before
        from_here, before = torch.cat([before[None], maps[:-1]]), maps[-1].clone()
        return setting.between(from_here, maps)

    steps, world, noise = setting.pending(onwards), setting.task, setting.noise_key(draw, level)
    for t in range(1, setting.steps + 1):
        world = setting.world(sigma, noise, step=t / setting.steps)
        steps.add(setting.values(world, *setting.path_key(draw, level, t)))
    setting.answers.add(setting.outputs(world))
    return Moved(steps.all().cumsum(0)[-1])
