"""Gradient and class activation maps, relevance and Owen values, one sample at a time."""

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.values.task import Task


def slope(task: Task, sample: int, x: Tensor) -> Tensor:
    x = x[None].clone().requires_grad_(True)
    y = task.model(x)[0, task.targets[sample]]
    return torch.autograd.grad(y, x)[0][0]


def integrated(task: Task, sample: int, x: Tensor, steps: int) -> Tensor:
    """From zero, at the middles of `steps` equal steps."""
    total = torch.zeros_like(x)
    for step in range(steps):
        total += slope(task, sample, x * (step + 0.5) / steps) / steps
    return x * total


def noise(task: Task, key: Key, sample: int, draw: int, share: float) -> Tensor:
    """Normal numbers times a share of the range."""
    x = task.inputs[sample]
    flat = keyed.noise(key / "noise", task.draw_ids[sample : sample + 1], draw, x.numel(), x.dtype)[0]
    return flat.view_as(x) * share * float(x.max() - x.min())


def under_noise(
    task: Task, key: Key, samples: int, share: float, base: Callable[[int, Tensor], Tensor] | None = None
) -> Tensor:
    """All maps under noise: (n, draws, *input shape)."""
    base = base or (lambda sample, x: slope(task, sample, x))
    rows = []
    for sample in range(len(task)):
        maps = [
            base(sample, task.inputs[sample] + noise(task, key, sample, draw, share))
            for draw in range(samples)
        ]
        rows.append(torch.stack(maps))
    return torch.stack(rows)


def from_baselines(task: Task, key: Key, samples: int, share: float = 0.0) -> Tensor:
    rows = []
    for sample in range(len(task)):
        own = task.draw_ids[sample : sample + 1]
        total = torch.zeros_like(task.inputs[sample])
        for draw in range(samples):
            x = task.inputs[sample]
            if share:
                x = x + noise(task, key, sample, draw, share)
            start = torch.zeros_like(x)
            if task.train is not None:
                start = task.train[int(keyed.integers(key / "baseline", own, draw, 1, len(task.train)))]
            place = float(keyed.uniform(key / "place", own, draw, 1, torch.float64))
            total += (x - start) * slope(task, sample, start + place * (x - start))
        rows.append(total / samples)
    return torch.stack(rows)


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


def halving_order(places: np.ndarray) -> list[int]:
    """The features at these places (D, axes), so that what is halved together lies together."""

    def halved(members: list[int]) -> list[int]:
        if len(members) < 2:
            return members
        spans = [np.ptp(places[members, axis]) for axis in range(places.shape[1])]
        longest = spans.index(max(spans))
        ordered = sorted(members, key=lambda member: places[member, longest])
        middle = len(ordered) // 2
        return halved(ordered[:middle]) + halved(ordered[middle:])

    return halved(list(range(len(places))))


def owen_values(
    order: list[int], ask: Callable[[frozenset[int]], float], high: float, budget: int, together: int = 10
) -> dict[int, float]:
    """The value of each feature of a sample: `ask` says the output with a set of features there."""
    credit = dict.fromkeys(order, 0.0)
    root = (tuple(order), frozenset(), ask(frozenset()), high, 1.0)
    waiting, left = [root], budget - 2

    def moved(branch: tuple) -> float:
        _, _, low, high, weight = branch
        return abs(high - low) * weight

    while True:
        # `max` takes the first of equals, and branches wait in the order in which they came up
        several, chosen = [branch for branch in waiting if len(branch[0]) > 1], []
        while several and 2 * len(chosen) < min(together, left):
            chosen.append(max(several, key=moved))
            several = [branch for branch in several if branch is not chosen[-1]]
        if not chosen:
            break
        for branch in chosen:
            members, there, low, high, weight = branch
            waiting = [other for other in waiting if other is not branch]
            first, second = members[: len(members) // 2], members[len(members) // 2 :]
            with_first, with_second = there | set(first), there | set(second)
            one, two = ask(with_first), ask(with_second)
            waiting += [
                (first, there, low, one, weight / 2),
                (second, there, low, two, weight / 2),
                (first, with_second, two, high, weight / 2),
                (second, with_first, one, high, weight / 2),
            ]
            left -= 2
    for members, _, low, high, weight in waiting:
        for member in members:
            credit[member] += (high - low) * weight / len(members)
    return credit


def pushed(z: float) -> float:
    return z + (1e-6 if z >= 0 else -1e-6)


def convolved(a: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
    outputs, _, height, width = w.shape
    z = np.zeros((outputs, a.shape[1] - height + 1, a.shape[2] - width + 1))
    for o, r, c in np.ndindex(*z.shape):
        z[o, r, c] = b[o] + (w[o] * a[:, r : r + height, c : c + width]).sum()
    return z


def through_convolution(a: np.ndarray, w: np.ndarray, b: np.ndarray, R: np.ndarray) -> np.ndarray:
    out = np.zeros_like(a)
    for o, r, c in np.ndindex(*R.shape):
        window = (slice(None), slice(r, r + w.shape[2]), slice(c, c + w.shape[3]))
        parts = np.maximum(a[window] * w[o], 0.0)
        out[window] += parts / pushed(parts.sum() + max(b[o], 0.0)) * R[o, r, c]
    return out


def through_linear(a: np.ndarray, w: np.ndarray, b: np.ndarray, R: np.ndarray) -> np.ndarray:
    out = np.zeros_like(a)
    for o in range(len(w)):
        out += a * w[o] / pushed(float(w[o] @ a + b[o])) * R[o]
    return out


def relevance(x: np.ndarray, convolutions: list, linear: tuple, target: int) -> np.ndarray:
    """Relevance of x (channels, height, width) in [convolution, ReLU] * n, flatten, linear."""
    inputs = []
    for w, b in convolutions:
        inputs.append(x)
        x = np.maximum(convolved(x, w, b), 0.0)
    start = np.zeros(len(linear[0]))
    start[target] = 1.0
    R = through_linear(x.reshape(-1), *linear, start).reshape(x.shape)
    for (w, b), a in zip(reversed(convolutions), reversed(inputs), strict=True):
        R = through_convolution(a, w, b, R)
    return R


def contributions(rule, a, w, b, z, gamma, low, high):
    """Modified contributions c of each input to one neuron with their denominator: [(factor, c, total)]."""
    c = a * w
    up, down = np.where(c > 0, c, 0.0), np.where(c < 0, c, 0.0)
    if rule == "epsilon":
        return [(1.0, c, c.sum() + b)]
    if rule == "z_plus":
        return [(1.0, up, up.sum() + max(b, 0.0))]
    if rule == "alpha_beta":
        return [(2.0, up, up.sum() + max(b, 0.0)), (-1.0, down, down.sum() + min(b, 0.0))]
    if rule == "flat":
        return [(1.0, np.ones_like(w), float(len(w)))]
    if rule == "w_square":
        return [(1.0, w**2, (w**2).sum())]
    if rule == "z_box":
        box = c - low * np.where(w > 0, w, 0.0) - high * np.where(w < 0, w, 0.0)
        return [(1.0, box, box.sum())]
    if rule == "gamma":
        extra, bias = (up, max(b, 0.0)) if z >= 0 else (down, min(b, 0.0))
        changed = c + gamma * extra
        return [(1.0, changed, changed.sum() + b + gamma * bias)]
    raise ValueError(rule)


def one_layer(rule, a, W, b, R, gamma=0.25, low=0.0, high=1.0):
    """R_i = sum_j share of i in neuron j times R_j."""
    out = np.zeros_like(a)
    for j in range(len(W)):
        bias = 0.0 if b is None else b[j]
        z = float(a @ W[j]) + bias
        for factor, c, total in contributions(rule, a, W[j], bias, z, gamma, low, high):
            if total != 0:
                out += factor * c / total * R[j]
    return out


def relevance_two_layers(rule, x, layers, target, **constants):
    """Layers are (W, b) pairs with ReLU between them; all follow one rule."""
    activations = [x]
    for k, (W, b) in enumerate(layers):
        z = W @ activations[-1] + (0.0 if b is None else b)
        activations.append(np.maximum(z, 0.0) if k + 1 < len(layers) else z)
    R = np.zeros_like(activations[-1])
    R[target] = activations[-1][target]
    for a, (W, b) in reversed(list(zip(activations[:-1], layers, strict=True))):
        R = one_layer(rule, a, W, b, R, **constants)
    return R
