"""Fast-GEF of the gradient as anybody would write it: a deep copy for every noisy model."""

from __future__ import annotations

import torch
from scipy import stats
from torch import Tensor, nn

import veridical as vd
from tests.reference.weights import changed_copy, noisy
from veridical.core.key import Key
from veridical.functional import round_to_grid


def naive_gef(
    task: vd.Task, model: nn.Module, path: tuple[float, ...], draws: int, names: str = ""
) -> Tensor:
    """Mean over draws of Spearman(D_f, D_phi) over levels, one a sample; `names` is a prefix to strip."""
    targets = task.targets

    def answered(twin: nn.Module) -> tuple[Tensor, Tensor]:
        x = task.inputs.clone().requires_grad_(True)
        answer = twin(x)
        own = (answer.logits if hasattr(answer, "logits") else answer).gather(1, targets[:, None])[:, 0]
        maps = task.values(torch.autograd.grad(own.sum(), x)[0]).double()
        return own.detach(), maps / maps.square().mean(1, keepdim=True).sqrt()

    clean, map_ = answered(changed_copy(model, {}).eval())
    scores = torch.zeros(len(task), dtype=torch.float64)
    for draw in range(draws):
        moved = []
        for level, sigma in enumerate(path):
            noise = noisy(model, sigma, Key(0) / "gef" / "noise" / draw / level, strip=names)
            own, maps = answered(changed_copy(model, noise).eval())
            pair = round_to_grid(torch.stack([clean, own], 1))
            moved.append(((pair[:, 0] - pair[:, 1]).abs(), (maps - map_).square().sum(1).sqrt()))
        for i in range(len(task)):
            d_f, d_phi = ([float(level[which][i]) for level in moved] for which in (0, 1))
            scores[i] += stats.spearmanr(d_f, d_phi).statistic / draws
    return scores
