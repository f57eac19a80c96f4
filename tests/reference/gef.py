"""GEF written slowly: plain loops over samples, draws and levels, and a deep copy for every noisy model."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

import veridical as vd
from veridical.core.key import Key, name_id, noise
from veridical.functional import round_to_grid


def of_form(form: str, **settings: Any) -> vd.gef.GEF:
    """The metric that takes this form."""
    return vd.gef.FastGEF(**settings) if form == "fast" else vd.gef.GEF(form=form, **settings)  # type: ignore[arg-type]


def weight_noise(key: Key, name: str, shape: torch.Size) -> Tensor:
    """N(0, 1) for one parameter, drawn by its name."""
    return noise(key, torch.tensor([name_id(name)]), 0, shape.numel()).view(shape)


def noisy(
    model: nn.Module, sigma: float, key: Key, layer: str | None = None, step: float = 1.0, strip: str = ""
) -> dict[str, Tensor]:
    """theta * (1 + step * sigma * N(0, 1)) for every floating-point parameter, drawn by its name."""
    return {
        name: (weight_noise(key, name.removeprefix(strip), value.shape).to(value) * (step * sigma) + 1.0)
        * value.detach()
        for name, value in model.named_parameters()
        if value.is_floating_point() and (layer is None or name == layer or name.startswith(layer + "."))
    }


def changed_copy(model: nn.Module, tensors: dict[str, Tensor]) -> nn.Module:
    """A deep copy with these tensors in it, also of modules whose hook left a computed weight behind."""
    left = {
        id(value): value.detach().clone()
        for module in model.modules()
        for value in module.__dict__.values()
        if isinstance(value, Tensor)
    }
    twin = copy.deepcopy(model, left)
    with torch.no_grad():
        for name, value in twin.named_parameters():
            if name in tensors:
                value.copy_(tensors[name])
    return twin


def score(model: np.ndarray, explanation: np.ndarray) -> np.ndarray:
    """Mean over draws of Spearman over levels, (N, M, Z) -> (N,)."""
    out = []
    for sample_model, sample_explanation in zip(model, explanation, strict=True):
        kept = []
        for d_f, d_phi in zip(sample_model, sample_explanation, strict=True):
            if np.ptp(d_f) == 0:
                continue
            kept.append(0.0 if np.ptp(d_phi) == 0 else stats.spearmanr(d_f, d_phi).statistic)
        out.append(np.mean(kept) if kept else np.nan)
    return np.array(out)


def program_distortion(
    clean: np.ndarray, steps: list[list[np.ndarray]], noisy: list[list[list[np.ndarray]]]
) -> list[float]:
    """The running mean over levels and steps of (de . j)^2 for one sample.

    `steps[z][t]` is the map at step t of level z, `noisy[z][t][k]` the maps of the same model with noise on
    its output.
    """
    seen, out = [], []
    for level, copies in zip(steps, noisy, strict=True):
        for moved, others in zip(level, copies, strict=True):
            change = clean - moved
            towards = np.mean([clean - other for other in others], axis=0)
            seen.append(float(np.dot(change, towards)) ** 2)
        out.append(float(np.mean(seen)))
    return out


def arc_length(maps: list[np.ndarray]) -> float:
    """The sum of the straight pieces between successive maps."""
    return float(sum(np.linalg.norm(b - a) for a, b in itertools.pairwise(maps)))


def jacobian_step(outputs: np.ndarray, maps: np.ndarray, step: np.ndarray) -> float:
    """||J step|| with J (V x C) from least squares: maps (K, V) = outputs (K, C) J^T."""
    jacobian = np.linalg.lstsq(outputs, maps, rcond=None)[0].T
    return float(np.linalg.norm(jacobian @ step))


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
