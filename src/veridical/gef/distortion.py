"""How far explanations move along the noise path, with how far the model moves beside it.

All forms share one signature, (setting, sigma, draw, level, clean map) -> Moved. Here are those that compare
maps: `fast` and `arc`; `jacobian` and `reference` have a file each.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from veridical.gef.found import Moved
from veridical.gef.setting import Setting

Form = Literal["fast", "reference", "jacobian", "arc"]


def fast(setting: Setting, sigma: float, draw: int, level: int, clean: Tensor) -> Moved:
    """The distance between the maps of the clean and the perturbed world (GEF eq. 6)."""
    world = setting.world(sigma, setting.noise_key(draw, level))
    moved = setting.between(clean, setting.explain(world, draw, level))
    setting.judge(setting.outputs(world))
    return Moved(moved)


def arc(setting: Setting, sigma: float, draw: int, level: int, clean: Tensor) -> Moved:
    """The length of the explanation's own path as the weights walk straight to the noisy ones.

    sum_t ||e_t - e_{t-1}|| over `steps` steps; one key serves the whole path of a stochastic explainer.
    """
    before = clean
    if setting.redraws:
        before = setting.explain(setting.task, *setting.path_key(draw, level, 0))
    world, noise = setting.task, setting.noise_key(draw, level)
    length = torch.zeros(len(world), dtype=torch.float64, device=world.device)
    for t in range(1, setting.steps + 1):
        world = setting.world(sigma, noise, step=t / setting.steps)
        here = setting.explain(world, *setting.path_key(draw, level, t))
        length, before = length + setting.between(before, here), here
    setting.judge(setting.outputs(world))
    return Moved(length)
