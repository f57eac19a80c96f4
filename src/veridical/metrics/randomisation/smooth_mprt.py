"""Smooth MPRT: the parameter randomisation test on maps averaged over noisy inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from veridical.errors import InputError
from veridical.explainers.base import Explainer
from veridical.metrics.base import register
from veridical.metrics.input_noise import gaussian_noise, movable, own_range, why_no_noise
from veridical.metrics.randomisation.layerwise import Order
from veridical.metrics.randomisation.mprt import LayerRandomisation
from veridical.rng import Key
from veridical.task import Task


@register
@dataclass(frozen=True)
class SmoothMprt(LayerRandomisation):
    """MPRT between maps averaged over noisy inputs: rho(mean_i e(x + eta_i), mean_i e_l(x + eta_i)).

    eta_i ~ N(0, (noise_level * range)^2) with the range of the sample's own elements; the same `noise_draws`
    draws (published programs take 50) serve every model. Layers are randomised from the input upwards (GEF
    eq. 31), mean over layers.
    """

    order: Order = "bottom_up"
    noise_draws: int = 10
    noise_level: float = 0.1
    name: ClassVar[str] = "smooth_mprt"
    summary: ClassVar[str] = "Does the denoised map change when the model's layers are randomised?"
    assumes: ClassVar[str] = "averaging over noisy inputs removes noise of the map and nothing else"
    misleads: ClassVar[str] = "as MPRT, less its reward for noisy maps; it judges the averaged method"
    paper: ClassVar[str] = "Hedström et al. 2024; GEF eq. 31"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noise_draws < 1:
            raise InputError(f"noise_draws must be at least 1, got {self.noise_draws}")
        if self.noise_level < 0:
            raise InputError(f"noise_level must not be negative, got {self.noise_level}")

    def why_not(self, task: Task) -> str | None:
        return super().why_not(task) or why_no_noise(task)

    def explain(self, explainer: Explainer, task: Task, key: Key, shared: Key) -> Tensor:
        # token ids are noised at the embeddings that this world's weights give them
        world = movable(task)
        spread = self.noise_level * own_range(world)
        total = torch.zeros((), dtype=torch.float64, device=world.device)
        for draw in range(self.noise_draws):
            x = world.inputs + spread * gaussian_noise(world, shared, draw)
            total = total + explainer(world.with_inputs(x), key / draw).values.double()
        return total / self.noise_draws
