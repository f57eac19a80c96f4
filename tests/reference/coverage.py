"""How the map of every explainer is known to be right on an architecture: one check for each explainer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.reference import detach_trick
from veridical.explainers import LrpAlphaBeta, LrpEpsilon, LrpGamma, LrpZPlus, registry
from veridical.random.keyed import Key

LAW, REFERENCE, RELATION, ANSWERS, ELSEWHERE = (
    "its law holds in this cell: the values sum to what they promise",
    "equals an independent computation in this cell",
    "equals, in this cell, another explainer that has a reference of its own",
    "reads nothing of the model but its answers to masked inputs; equals a slow rewrite on small models",
    "equals a slow rewrite on small networks; here its map is finite",
)


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


def _rollout(task: Any, found: Tensor) -> None:
    # one row of a product of matrices whose rows sum to 1
    assert bool(((found >= -1e-9) & (found <= 1 + 1e-6)).all())


LAWFUL = ("deeplift", "deeplift_shap", "exact_shapley", "kernel_shap", "partition_shap", "shapley_sampling")
BY_ANSWERS = ("feature_ablation", "hsic", "lime", "occlusion", "permutation_importance", "rise", "sobol")
CHECKS: dict[str, tuple[str, Callable[[Any, Tensor], None] | None]] = {
    **dict.fromkeys(LAWFUL, (LAW, None)),
    "attention_rollout": (LAW, _rollout),
    "gradient": (REFERENCE, by_differences),
    "input_x_gradient": (REFERENCE, _input_x_gradient),
    "saliency": (REFERENCE, _saliency),
    "integrated_gradients": (REFERENCE, _integrated),
    "guided_backprop": (REFERENCE, _guided),
    "deconvolution": (REFERENCE, _deconvolution),
    "lrp_epsilon": (REFERENCE, None),  # `detach_trick`, in a test of its own
    "lrp_gamma": (RELATION, _same(LrpGamma(0.0), LrpEpsilon(1e-9))),
    "lrp_alpha_beta": (RELATION, _same(LrpAlphaBeta(1.0), LrpZPlus())),
    "lrp": (RELATION, _same(registry.make("lrp", first="epsilon", convolution="epsilon"), LrpEpsilon())),
    **{name: (RELATION, _without_noise(name)) for name in ("smoothgrad", "smoothgrad_squared", "vargrad")},
    **dict.fromkeys(
        ("feature_ablation", "hsic", "lime", "occlusion", "permutation_importance", "rise", "sobol"),
        (ANSWERS, None),
    ),
}


def how(name: str) -> str:
    """How this explainer's map is known to be right, in words."""
    return CHECKS.get(name, (ELSEWHERE, None))[0]
