"""GEF's explanation distortion as its authors programmed it."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from veridical.core.key import Key
from veridical.gef.found import Moved
from veridical.gef.setting import Setting
from veridical.gef.worlds import with_output_noise
from veridical.values.task import Task

LOW = 1e-4


def strengths(sigma: float, steps: int) -> list[float]:
    """The noise strengths on the way to a level, in the reference form: evenly spaced from 1e-4."""
    shares = [t / (steps - 1) if steps > 1 else 1.0 for t in range(steps)]
    return [LOW + (sigma - LOW) * share for share in shares]


def step_key(key: Key, t: int) -> Key:
    """The key of the fresh noise of one of these."""
    return key / "step" / t


UNMOVED = 1e-5
"""Of the largest value of a map: what rounding may change."""


class RunningReference:
    """GEF as its authors programmed it: a running mean over levels of (de . j)^2.

    de = e - e_t for a fresh draw at each of T noise strengths from 1e-4 to the level's; j the mean of
    e - e_tk over K copies of that model with N(0, s) added to its output. Where the explainer reads no output
    values and is deterministic, every e_tk equals e_t, and the mean is that of ||de||^4.
    """

    def __init__(self) -> None:
        self.reached: bool | None = None
        self._total = self._count = torch.empty(0)

    def __call__(self, setting: Setting, sigma: float, draw: int, level: int, clean: Tensor) -> Moved:
        if level == 0:
            self._total = clean.new_zeros(len(clean))
            self._count = torch.zeros_like(self._total)
        noise = setting.noise_key(draw, level)
        for t, strength in enumerate(strengths(sigma, setting.steps)):
            world = setting.world(strength, step_key(noise, t))
            if self.reached is None:
                self.reached = self._reaches(setting, world)
            change = towards = clean - setting.explain(world, draw, level, t)
            if self.reached:
                towards = self._mean_change(setting, world, clean, change, draw, level, t)
            product = (change * towards).sum(-1).square()
            # a missing map joins no mean
            self._total = self._total + product.nan_to_num(0.0)
            self._count = self._count + ~product.isnan()
        setting.judge(setting.outputs(setting.world(sigma, noise)))
        mean = self._total / self._count.clamp(min=1)
        return Moved(torch.where(self._count > 0, mean, torch.nan))

    def _reaches(self, setting: Setting, world: Task) -> bool:
        """Whether noise on the outputs can change a map at all: it is tried, whatever the explainer says."""
        if setting.redraws:
            return True
        noisy = with_output_noise(world, setting.output_noise, setting.key / "reaches")
        # asked of tasks that remember nothing: what is not counted must not be found there later
        there, here = (setting.task.uncounted(partial(setting.values, at.changed())) for at in (noisy, world))
        apart, size = ((each.nan_to_num().abs().amax()) for each in (there - here, here))
        return bool(apart > UNMOVED * size)

    def _mean_change(
        self, setting: Setting, world: Task, clean: Tensor, change: Tensor, draw: int, level: int, t: int
    ) -> Tensor:
        total = torch.zeros_like(change)
        for k in range(setting.output_draws):
            key = setting.key / "output" / draw / level / t / k
            noisy = with_output_noise(world, setting.output_noise, key)
            total = total + (clean - setting.explain(noisy, draw, level, t, k))
        return total / setting.output_draws
