"""Linear operations with their ways back stated: to have autograd find one costs more than many a kernel."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from veridical.explainers.graph.linear_maps import Linear, convolution, dense, without_graph
from veridical.explainers.graph.routes import Routed

Step = tuple[Any, ...]
"""A function and what it is given."""


def lean(func: Callable[..., Any], args: Any, kwargs: Any) -> Step | None:
    """A batch norm by its running statistics without what torch asks around it; None for all else."""
    # torch.batch_norm takes its arguments in another order
    return (normed, *_of_norm(*args, **kwargs)) if func is F.batch_norm else None


def stated(
    kind: str, name: str, func: Callable[..., Any], args: Any, kwargs: Any, carries: Callable[[Any], bool]
) -> Step | None:
    """A function that gives the routed answer of a linear operation; None where autograd finds the way."""
    if kind == "linear":
        return _of_layer(name, func, args, kwargs)
    if func is F.batch_norm:
        return (norm, *_of_norm(*args, **kwargs))
    both = kind == "sum" and "sub" not in name and len(args) == 2 and not kwargs and all(map(carries, args))
    if both and args[0].shape == args[1].shape and args[0].dtype == args[1].dtype:
        return (added, *args)
    return None


def _of_layer(name: str, func: Callable[..., Any], args: Any, kwargs: Any) -> Step | None:
    named = {**dict(zip(("weight", "bias"), args[1:3], strict=False)), **kwargs}
    w, b = named.pop("weight"), named.pop("bias", None)
    if name == "linear":
        return (layer, dense, args[0], w, b)
    if func.__name__ != name:
        return None  # of another kind, such as torch.ops
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in named.items()}
    behind = tuple(tuple(value) if isinstance(value, list) else value for value in args[3:])
    return (layer, convolution(func, behind, tuple(given.items())), args[0], w, b)


def _of_norm(
    input: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> tuple[Any, ...]:
    return input, weight, bias, running_mean, running_var, eps


def layer(linear: Linear, a: Tensor, w: Tensor, b: Tensor | None) -> Routed:
    """A layer with weights."""
    z, pull = linear(a, w, b)
    return Routed(z, lambda R: (pull(R),), a)


def normed(
    a: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor, eps: float
) -> Tensor:
    """A batch norm by its running statistics."""
    return torch.batch_norm(a, weight, bias, mean, var, False, 0.0, eps, torch.backends.cudnn.enabled)


def norm(a: Tensor, weight: Tensor | None, bias: Tensor | None, *at: Any) -> Routed:
    """The same with its way back."""
    mean, var, eps = at
    empty = _empty(mean.dtype, mean.device)
    fixed = (weight, mean, var, empty, empty, False, eps, _FIRST)
    # of its input only the shape is asked for, which what arrives has too
    back = lambda R: (_norm_backward(R, R, *fixed)[0],)  # noqa: E731
    return Routed(normed(without_graph(a), weight, bias, *at), back, a)


@lru_cache(maxsize=64)
def _empty(dtype: torch.dtype, device: torch.device) -> Tensor:
    """In the place of a batch's statistics, which a GPU wants to be there."""
    return torch.empty(0, dtype=dtype, device=device)


def added(a: Tensor, b: Tensor) -> Routed:
    """A sum of two of one shape: what arrives goes to both as it is."""
    return Routed(without_graph(a) + without_graph(b), _to_both, a, b)


def _to_both(R: Tensor) -> tuple[Tensor, Tensor]:
    return R, R


_norm_backward: Callable[..., tuple[Tensor, ...]] = torch.ops.aten.native_batch_norm_backward.default
_FIRST = [True, False, False]
"""That only the gradient of a norm's input is asked for."""
