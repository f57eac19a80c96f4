"""Smooth MPRT: the parameter randomisation test on maps averaged over noisy inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from veridical.explainers.input_noise import gaussian_draws, movable, own_range, why_no_noise
from veridical.metrics import Count, Explainer, Key, NotNegative, Task, register
from veridical.metrics.randomisation._common import Order
from veridical.metrics.randomisation.mprt import LayerRandomisation
from veridical.metrics.re_explaining import Explain, at_once, stacked


@register
@dataclass(frozen=True)
class SmoothMprt(LayerRandomisation):
    """MPRT between maps averaged over noisy inputs: rho(mean_i e(x + eta_i), mean_i e_l(x + eta_i)).

    eta_i ~ N(0, (noise_level * range)^2) with the range of the sample's own elements; mean over layers.
    """

    order: Order = "bottom_up"
    """Which layers go first; from the input upwards by default (GEF eq. 31)."""
    noise_draws: Count = 10
    """Noisy inputs per sample, the same for every model; published programs take 50."""
    noise_level: NotNegative = 0.1
    """Standard deviation of the noise, as a share of the range of the sample's own elements."""
    name: ClassVar[str] = "smooth_mprt"
    version: ClassVar[int] = 2
    summary: ClassVar[str] = "Does the denoised map change when the model's layers are randomised?"
    assumes: ClassVar[str] = "averaging over noisy inputs removes noise of the map and nothing else"
    misleads: ClassVar[str] = "as MPRT, less its reward for noisy maps; it scores the averaged method"
    paper: ClassVar[str] = "Hedström et al. 2024; GEF eq. 31"

    def inapplicable_reason(self, task: Task) -> str | None:
        return super().inapplicable_reason(task) or why_no_noise(task)

    def mapping(self, explainer: Explainer, explain: Explain, task: Task, key: Key) -> Explain:
        def smooth(other: Task, own: Key) -> Tensor:
            # token ids are noised at the embeddings that this model's weights give them
            other = movable(other)
            times = at_once(explainer, other, self.noise_draws)
            total = torch.zeros((), dtype=torch.float64, device=other.device)
            for first in range(0, self.noise_draws, times):
                draws = range(first, min(first + times, self.noise_draws))
                noise = gaussian_draws(other, key, draws)
                noisy = (other.inputs + self.noise_level * own_range(other) * noise).flatten(0, 1)
                values = explain(stacked(other, len(draws), noisy), own / first)
                total = total + values.unflatten(0, (len(draws), -1)).sum(0, dtype=torch.float64)
            return total / self.noise_draws

        return smooth
