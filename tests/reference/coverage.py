"""How the map of every explainer is known to be right on an architecture: one check for each explainer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from tests.reference import detach_trick
from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.explainers import LrpAlphaBeta, LrpEpsilon, LrpGamma, LrpZPlus, registry
from veridical.explainers.gradients import baselines


def answers_of(task: Any, x: Tensor) -> Tensor:
    """The explained outputs for other rows, by the model itself."""
    at = task.at_embeddings()
    model = at.predictor.model
    answer = model(x, **at.side) if isinstance(at.side, dict) else model(x, *at.side)
    outputs = getattr(answer, "logits", answer)
    outputs = outputs[:, None] if outputs.dim() == 1 else outputs
    return outputs.gather(1, task.targets[:, None])[:, 0]


def slope(task: Any, x: Tensor) -> Tensor:
    x = x.detach().clone().requires_grad_(True)
    return torch.autograd.grad(answers_of(task, x).sum(), x)[0]


def by_differences(task: Any, found: Tensor) -> None:
    """Gradients along random directions are the changes of the output along them."""
    x = task.at_embeddings().inputs
    along = torch.randn(x.shape, generator=torch.Generator().manual_seed(2)).to(x) * (x.abs() + 0.1)
    own = (slope(task, x) * along).flatten(1).sum(1)

    def far(step: float) -> float:
        with torch.no_grad():
            change = (answers_of(task, x + step * along) - answers_of(task, x - step * along)) / (2 * step)
        return float(((change - own).abs() / own.abs().clamp(min=0.05)).max())

    # some of Hugging Face's norms compute in float32, where a small step is mostly rounding
    assert min(far(1e-6), far(1e-3)) < 0.01
    expected = task.at_embeddings().values(slope(task, x))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)


def _input_x_gradient(task: Any, found: Tensor) -> None:
    x = task.at_embeddings().inputs
    torch.testing.assert_close(found, task.at_embeddings().values(x * slope(task, x)), rtol=1e-6, atol=1e-9)


def _saliency(task: Any, found: Tensor) -> None:
    x = task.at_embeddings().inputs
    torch.testing.assert_close(found, task.at_embeddings().values(slope(task, x).abs()), rtol=1e-6, atol=1e-9)


def _integrated(task: Any, found: Tensor) -> None:
    x = task.at_embeddings().inputs
    points, weights = np.polynomial.legendre.leggauss(4)
    mean = sum(w / 2 * slope(task, x * (p + 1) / 2) for p, w in zip(points, weights, strict=True))
    torch.testing.assert_close(found, task.at_embeddings().values(x * mean), rtol=1e-5, atol=1e-8)


def _guided(task: Any, found: Tensor) -> None:
    torch.testing.assert_close(found, detach_trick.guided(task), rtol=1e-9, atol=1e-12)


def _deconvolution(task: Any, found: Tensor) -> None:
    torch.testing.assert_close(found, detach_trick.guided(task, everywhere=True), rtol=1e-9, atol=1e-12)


def _same(one: Any, other: Any) -> Callable[[Any, Tensor], None]:
    def check(task: Any, found: Tensor) -> None:
        a, b = (explainer(task, Key(0)).values for explainer in (one, other))
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6 * float(b.abs().max()))

    return check


def _without_noise(name: str) -> Callable[[Any, Tensor], None]:
    def check(task: Any, found: Tensor) -> None:
        plain = registry.make("gradient")(task).values
        quiet = registry.make(name, samples=2, noise=0.0)(task).values
        at = task.at_embeddings()
        squared = at.values(slope(task, at.inputs) ** 2)
        expected = {"smoothgrad": plain, "smoothgrad_squared": squared, "vargrad": torch.zeros_like(plain)}
        torch.testing.assert_close(quiet, expected[name], rtol=1e-6, atol=1e-9)

    return check


def _z_plus(task: Any, found: Tensor) -> None:
    kinds = [type(layer) for layer in task.predictor.model.modules()]
    plain = not {nn.LSTM, nn.GRU, nn.Embedding, nn.EmbeddingBag, nn.MultiheadAttention} & set(kinds)
    if plain and not (nn.LayerNorm in kinds and nn.Conv2d in kinds):
        expected = detach_trick.z_plus(task)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))
    else:
        _same(LrpAlphaBeta(1.0), LrpZPlus())(task, found)


def _from_baselines(name: str, samples: int) -> Callable[[Any, Tensor], None]:
    """The mean of way times slope over the very draws, one after the other, slopes by the model itself."""

    def check(task: Any, found: Tensor) -> None:
        at, key = task.at_embeddings(), Key(0) / name
        x, draws, total = at.inputs, torch.arange(samples), torch.zeros_like(at.inputs)
        starts = baselines(at, key, draws)
        places = keyed.uniform(key / "place", at.draw_ids, draws, 1, torch.float64)[..., 0]
        for k in range(samples):
            at_place = places[:, k].reshape(-1, *[1] * (x.dim() - 1)).to(x)
            way = x - starts[:, k]
            total += way * slope(task, starts[:, k] + at_place * way)
        torch.testing.assert_close(found, at.values(total / samples), rtol=1e-5, atol=1e-8)

    return check


class _Maps(TorchFunctionMode):
    """Keeps every tensor that may be maps of channels, or tokens of patches, in the order they are made."""

    def __init__(self, axes: int) -> None:
        super().__init__()
        self.axes, self.made = axes, []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        value = func(*args, **(kwargs or {}))
        if isinstance(value, Tensor) and value.requires_grad and value.dim() in (3, 4):
            self.made.append(value)
        return value


def _as_maps(value: Tensor, axes: int) -> list[Tensor]:
    """Maps (n, channels, *grid) that a tensor may be: itself, or tokens in a square, perhaps behind one."""
    if value.dim() == axes + 2:
        channels_last = [value.movedim(-1, 1)] if axes == 2 else []
        return [value, *channels_last]
    out = []
    for extra in (0, 1):
        side = round((value.shape[1] - extra) ** 0.5)
        if side > 1 and side * side == value.shape[1] - extra:
            out.append(value[:, extra:].unflatten(1, (side, side)).movedim(-1, 1))
    return out


def _weighed(name: str, a: Tensor, g: Tensor) -> Tensor:
    grid = tuple(range(2, a.dim()))
    if name == "layercam":
        return (g.clamp(min=0) * a).sum(1).clamp(min=0)
    if name == "gradcam":
        return (g.mean(grid, keepdim=True) * a).sum(1).clamp(min=0)
    below = 2 * g**2 + a.sum(grid, keepdim=True) * g**3
    alpha = torch.where(below == 0, 0.0, g**2 / torch.where(below == 0, 1.0, below))
    return ((alpha * g.clamp(min=0)).sum(grid, keepdim=True) * a).sum(1).clamp(min=0)


def _cam(name: str) -> Callable[[Any, Tensor], None]:
    """The map is the printed sum at one of the tensors that the model makes, by autograd's own gradient."""

    def check(task: Any, found: Tensor) -> None:
        axes = task.inputs.dim() - 2
        x = task.inputs.detach().clone().requires_grad_(True)
        with _Maps(axes) as seen:
            outputs = task.predictor.model(x)
        outputs = getattr(outputs, "logits", outputs)
        slopes = torch.autograd.grad(
            outputs.gather(1, task.targets[:, None]).sum(), seen.made, allow_unused=True
        )
        mode = "bilinear" if axes == 2 else "linear"
        for a, g in zip(reversed(seen.made), reversed(slopes), strict=True):
            if g is None:
                continue
            for maps, grads in zip(_as_maps(a.detach(), axes), _as_maps(g, axes), strict=True):
                small = _weighed(name, maps, grads)[:, None]
                large = F.interpolate(small, size=task.inputs.shape[2:], mode=mode, align_corners=False)
                if torch.allclose(large.flatten(1), found, rtol=1e-5, atol=1e-9):
                    return
        raise AssertionError(
            f"{name} is the sum at none of the {len(seen.made)} tensors that the model makes"
        )

    return check


def _scorecam(task: Any, found: Tensor) -> None:
    """Channels of one of the last maps, each weighted by the output behind its own mask (softmax)."""
    axes = task.inputs.dim() - 2
    x, model, size = task.inputs, task.predictor.model, task.inputs.shape[2:]
    mode = "bilinear" if axes == 2 else "linear"
    with _Maps(axes) as seen:
        model(x.detach().clone().requires_grad_(True))
    tried = [m for a in reversed(seen.made) for m in _as_maps(a.detach(), axes) if m[0, 0].numel() > 1]
    for maps in tried[:8]:
        large = F.interpolate(maps, size=size, mode=mode, align_corners=False)
        grid = tuple(range(2, large.dim()))
        low, high = large.amin(grid, keepdim=True), large.amax(grid, keepdim=True)
        masks = (large - low) / torch.where(high > low, high - low, torch.ones_like(high))
        with torch.no_grad():
            answers = [model(x * masks[:, k : k + 1]) for k in range(masks.shape[1])]
        scores = torch.stack([a.gather(1, task.targets[:, None])[:, 0] for a in answers], 1)
        flat = (high == low).flatten(1)  # such a channel shows nothing
        scores = scores.masked_fill(flat, -torch.inf).softmax(1).nan_to_num(0.0)
        small = (scores.reshape(*scores.shape, *[1] * axes) * maps).sum(1, keepdim=True).clamp(min=0)
        laid = F.interpolate(small, size=size, mode=mode, align_corners=False)
        if torch.allclose(laid.flatten(1), found, rtol=1e-5, atol=1e-9):
            return
    raise AssertionError("scorecam is the weighted sum at none of the last maps")


def _guided_cam(task: Any, found: Tensor) -> None:
    coarse = registry.make("gradcam")(task).values
    torch.testing.assert_close(found, detach_trick.guided(task) * coarse, rtol=1e-6, atol=1e-10)


def _attended(task: Any, found: Tensor) -> None:
    """Never below 0; in Hugging Face's text models equal to the rule over the attention they hand out."""
    assert bool((found >= 0).all())
    model = task.predictor.model
    if not hasattr(model, "config") or task.modality != "text":
        return
    model.set_attn_implementation("eager")  # the other ways do not hand it out
    with torch.enable_grad():
        answer = model(task.inputs, output_attentions=True)
        total = answer.logits.gather(1, task.targets[:, None]).sum()
        slopes = torch.autograd.grad(total, answer.attentions)
    mixing = torch.eye(task.inputs.shape[1]).double().expand(len(task), -1, -1)
    for a, g in zip(answer.attentions, slopes, strict=True):
        mixing = mixing + (a.detach() * g).double().clamp(min=0).mean(1) @ mixing
    mixing = mixing - torch.eye(mixing.shape[-1]).double()
    rows = [mixing[:, 0], mixing[:, -1], mixing.mean(1)]
    assert any(torch.allclose(row.to(found), found, rtol=1e-5, atol=1e-9) for row in rows)


def _rollout(task: Any, found: Tensor) -> None:
    # one row of a product of matrices whose rows sum to 1
    assert bool(((found >= -1e-9) & (found <= 1 + 1e-6)).all())


LAWFUL = ("deeplift", "deeplift_shap", "exact_shapley", "kernel_shap", "partition_shap", "shapley_sampling")
CHECKS: dict[str, Callable[[Any, Tensor], None]] = {
    "attention_rollout": _rollout,
    "gradient": by_differences,
    "input_x_gradient": _input_x_gradient,
    "saliency": _saliency,
    "integrated_gradients": _integrated,
    "guided_backprop": _guided,
    "deconvolution": _deconvolution,
    **{name: _cam(name) for name in ("gradcam", "gradcam_plus_plus", "layercam")},
    "scorecam": _scorecam,
    "guided_gradcam": _guided_cam,
    "gradient_x_attention": _attended,
    **{name: _from_baselines(name, 4) for name in ("expected_gradients", "gradient_shap")},
    "lrp_z_plus": _z_plus,
    "lrp_gamma": _same(LrpGamma(0.0), LrpEpsilon(1e-9)),
    "lrp_alpha_beta": _same(LrpAlphaBeta(1.0), LrpZPlus()),
    "lrp": _same(registry.make("lrp", first="epsilon", convolution="epsilon"), LrpEpsilon()),
    **{name: _without_noise(name) for name in ("smoothgrad", "smoothgrad_squared", "vargrad")},
}
"""Against an independent computation, or another explainer that has one. The others are complete, read only
outputs, or equal slow rewrites."""
