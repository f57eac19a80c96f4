"""Slow, obvious rewrites of the class activation maps: one sample and one channel at a time."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn


def activations(layers: nn.Sequential, cut: int, x: Tensor, target: int) -> tuple[Tensor, Tensor]:
    """The output of layer `cut` for one sample and its gradient: (channels, *grid) both."""
    a = layers[: cut + 1](x[None]).detach().requires_grad_(True)
    y = layers[cut + 1 :](a)[0, target]
    return a[0].detach(), torch.autograd.grad(y, a)[0][0]


def gradcam(a: Tensor, g: Tensor) -> Tensor:
    out = torch.zeros_like(a[0])
    for k in range(len(a)):
        out += g[k].mean() * a[k]
    return out.clamp(min=0)


def gradcam_plus_plus(a: Tensor, g: Tensor) -> Tensor:
    out = torch.zeros_like(a[0])
    for k in range(len(a)):
        weight = 0.0
        for value in g[k].flatten().tolist():
            below = 2 * value**2 + float(a[k].sum()) * value**3
            alpha = 0.0 if below == 0 else value**2 / below
            weight += alpha * max(0.0, value)
        out += weight * a[k]
    return out.clamp(min=0)


def layercam(a: Tensor, g: Tensor) -> Tensor:
    out = torch.zeros_like(a[0])
    for k in range(len(a)):
        out += g[k].clamp(min=0) * a[k]
    return out.clamp(min=0)


def scorecam(net: nn.Module, x: Tensor, target: int, a: Tensor) -> Tensor:
    scores = []
    for k in range(len(a)):
        mask = enlarged(a[k], tuple(x.shape[1:]))
        mask = (mask - mask.min()) / (mask.max() - mask.min())
        with torch.no_grad():
            scores.append(float(net((x * mask)[None])[0, target]))
    weights = np.exp(np.array(scores) - max(scores))
    weights /= weights.sum()
    out = torch.zeros_like(a[0])
    for k in range(len(a)):
        out += weights[k] * a[k]
    return out.clamp(min=0)


def enlarged(small: Tensor, size: tuple[int, ...]) -> Tensor:
    mode = "bilinear" if len(size) == 2 else "linear"
    return F.interpolate(small[None, None], size=size, mode=mode, align_corners=False)[0, 0]
