"""Differences to a baseline through every operation of a model (DeepLIFT), so that none is lost.

Linear operations pass differences on as they are. A non-linear one has a multiplier for each thing it is
given, such that multipliers times differences sum to the change of what it answers:

    f(z)        (f(z) - f(z0)) / (z - z0), the slope between baseline and input (the rescale rule)
    a * b, a @ b    (b + b0) / 2 for a, (a + a0) / 2 for b
    softmax     exp(z - log of the sum of exp(z)): exponentials, a sum and a logarithm, each by the above;
                no multiplier is beyond 1, however far the baseline is; its logarithm likewise
    maximum     its change goes to the winner of the side whose maximum is larger

Norms, attention and recurrent layers are taken apart into these (`decompose`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from veridical.errors import NotApplicableError
from veridical.explainers.graph import decompose
from veridical.explainers.graph.difference_steps import (
    over,
    rescaled,
    through_pool,
    through_product,
    through_softmax,
)
from veridical.explainers.graph.follow import Follower
from veridical.explainers.graph.linear_maps import leaf_of, without_graph
from veridical.explainers.graph.linear_ways import lean, stated
from veridical.explainers.graph.operations import kind_of, only_tensors
from veridical.explainers.graph.routes import Routed, by_autograd, pulling, ungraded

Record = list[tuple[str, tuple[Tensor, ...]]]
"""What each non-linear operation was given and answered at a baseline."""
Three = tuple[Tensor, Tensor, Tensor]
"""What a maximum was given, what it answered, and where that lay."""
_LINEAR = frozenset({"structure", "linear", "transposed", "average", "sum"})
_ELEMENTWISE = frozenset({"activation", "gate", "elementwise"})


class Differences(Follower):
    """One run of a model: at a baseline, where all is recorded, or at x, whose differences go back.

    They are taken to the record `before`. It is read on the way back, so that one run of x serves many.
    """

    method = "DeepLIFT"

    def __init__(self, x: Tensor, before: Record | None = None) -> None:
        super().__init__(x)
        self.record: Record = []
        self.before = before
        self.taped = before is not None
        self._seen = 0

    @property
    def decides(self) -> tuple[Any, ...]:
        return (self.before is None,)

    def rule(self, name: str, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        kind = kind_of(name, args, kwargs)
        if kind == "compare":
            return self.do(
                func, *args, **kwargs
            )  # fit for a rectifier by hand; whatever else reads it is refused
        for held in self.holds(args, kwargs):
            raise self.refused(
                f"operation '{name}'", f"of what it is given a part carries no difference: {held.why}"
            )
        if not args and "input" in kwargs:
            args = (kwargs.pop("input"),)
        value = self._by_kind(kind, name, func, args, kwargs)
        if not only_tensors(value):
            raise self.refused(f"operation '{name}'", "the model chooses its way by the values of its input")
        return value

    def rule_of_held(self, name: str, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        value = super().rule_of_held(name, func, args, kwargs)
        if not only_tensors(value):
            raise self.refused(f"operation '{name}'", "the model chooses its way by the values of its input")
        return value

    def _by_kind(self, kind: str, name: str, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        # weights, bounds and what is put into a mask: the same at the baseline
        settled = not any(map(self.carries, (*args[1:], *kwargs.values())))
        if kind in _LINEAR and (settled or kind not in ("linear", "transposed")):
            return self._linear(kind, name, func, args, kwargs)
        if name == "masked_fill" and settled:
            return self._linear(kind, name, func, args, kwargs)
        if kind in _ELEMENTWISE and self.carries(args[0]) and settled:
            if name == "relu":
                return self._bent(Differences._rectified, name, args[0])
            return self._bent(Differences._elementwise, name, args[0], func, args[1:], kwargs)
        if kind == "product":
            return self._product(name, *args, **kwargs)
        if kind == "matmul":
            return self._bilinear(kind, name, func, args)
        if kind == "addmm" and self.carries(args[1]) and not (kwargs or self.carries(args[2])):
            return self._linear(kind, name, func, args, {})
        if kind == "batch_norm" and settled and not (args[5:6] == (True,) or kwargs.get("training", False)):
            return self._linear(kind, name, func, args, kwargs)
        if name in ("softmax", "log_softmax"):
            return self._bent(Differences._softmax, name, args[0], func, args[1:], kwargs)
        if kind == "maximum":
            return self._maximum(name, func, args, kwargs)
        if kind in ("norm", "spread", "attention", "recurrent"):
            return self._block(name, args, kwargs)
        why = "it is neither linear nor one that differences have a stated rule for"
        raise self.refused(f"operation '{name}'", kind if "mixes" in kind else why)

    def _linear(self, kind: str, name: str, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """What passes differences on as they are."""
        if self.before is None:
            step = lean(func, args, kwargs)
            return self.do(func, *args, **kwargs) if step is None else self.do(*step)
        step = stated(kind, name, func, args, kwargs, self.carries)
        return by_autograd(self.plan, name, func, args, kwargs) if step is None else self.do(*step)

    def _bent(self, step: Callable[..., Any], name: str, a: Tensor, *how: Any) -> Any:
        """A non-linear operation, known by its number in this run."""
        if self.before is not None:
            self.at_baseline(self._seen, name, a, *(v for v in how if isinstance(v, Tensor)))
        value = self.do(step, self, self._seen, name, a, *how)
        self._seen += 1
        return value

    def _block(self, name: str, args: Any, kwargs: Any) -> Any:
        try:
            with self:
                if name in decompose.BLOCKS:
                    return decompose.BLOCKS[name](*args, **kwargs)
                return decompose.recurrent(name, args)
        except (NotApplicableError, TypeError) as error:
            raise self.refusal or self.refused(f"operation '{name}'", str(error)) from None

    def at_baseline(self, at: int, name: str, *values: Tensor) -> tuple[Tensor, ...]:
        """What an operation was given and answered at the baseline, fit to stand beside these values."""
        assert self.before is not None
        then, known = self.before[at] if at < len(self.before) else ("", ())
        if then != name:
            raise self.refused(f"operation '{name}'", "the model takes another way at the baseline than here")
        if all(map(_beside, known, values)):
            return known
        return tuple(self._laid(name, z0, z) for z0, z in zip(known, values, strict=False))

    def _laid(self, name: str, z0: Tensor, z: Tensor) -> Tensor:
        """The baseline's value repeated along the axis that counts rows: the one where the shapes differ."""
        if z0.shape == z.shape:
            return z0
        differing = [i for i, (n, m) in enumerate(zip(z.shape, z0.shape, strict=False)) if n != m]
        if z0.dim() != z.dim() or len(differing) != 1 or z.shape[differing[0]] % z0.shape[differing[0]]:
            raise self.refused(
                f"operation '{name}'",
                f"it sees {tuple(z.shape)}, and {tuple(z0.shape)} at the baseline; one axis counts rows",
            )
        axis = differing[0]
        if z0.shape[axis] == 1:
            return z0.expand_as(z)
        # a model may lay several things of one row along the axis of the rows
        times = z.shape[axis] // z0.shape[axis]
        return z0.unsqueeze(axis).expand(*z0.shape[:axis], times, *z0.shape[axis:]).reshape(z.shape)

    # --- the rules ------------------------------------------------------------------------------------

    def _noted(self, name: str, y: Tensor, *values: Tensor) -> Tensor:
        self.record.append((name, values))
        return y

    def _rectified(self, at: int, name: str, a: Tensor) -> Tensor | Routed:
        z = without_graph(a)
        y = torch.relu(z)
        if self.before is None:
            return self._noted(name, y, z, y)
        return Routed(y, lambda above: (rescaled(above, z, y, *self.at_baseline(at, name, z, y)),), a)

    def _elementwise(
        self, at: int, name: str, a: Tensor, func: Callable[..., Any], behind: Any, kwargs: Any
    ) -> Tensor | Routed:
        z = without_graph(a)
        if self.before is None:
            y = func(z, *behind, **kwargs)
            return self._noted(name, y, z, y)
        leaf = leaf_of(a)
        with torch.enable_grad():
            answer = func(leaf, *behind, **kwargs)
        y, pull = answer.detach(), pulling([answer], [leaf])

        def back(above: Tensor) -> tuple[Tensor]:
            z0, y0 = self.at_baseline(at, name, z, y)
            (plain,) = pull([above])
            return (over((y - y0) * above, z - z0, plain),)

        return Routed(y, back, a)

    def _product(self, name: str, a: Any, b: Any, **how: Any) -> Tensor:
        if name in ("rdiv", "rtruediv"):
            a, b = b, a
        divides = "div" in name
        if divides and how:
            raise self.refused(f"operation '{name}'", "only a plain quotient has a stated rule")
        if divides and self.carries(b):
            with self:
                inverse = torch.reciprocal(b)
                product: Tensor = torch.mul(inverse, a)
            return product
        if divides:
            return self._bilinear("product", "div", operator.truediv, (a, b))
        return self._bilinear("product", "mul", torch.mul, (a, b))

    def _bilinear(self, kind: str, name: str, func: Callable[..., Any], args: Any) -> Tensor:
        """What is linear in each of two: each has the mean of the other at baseline and input."""
        places = [i for i, v in enumerate(args) if self.carries(v)]
        if len(places) == 1:
            once: Tensor = self._linear(kind, name, func, args, {})
            return once
        if len(places) != 2:
            raise self.refused(f"operation '{name}'", "only products of two activations have a stated rule")
        i, j = places
        joint: Tensor = self._bent(Differences._joint, name, args[i], args[j], func, args, i, j)
        return joint

    def _joint(
        self, at: int, name: str, a: Tensor, b: Tensor, func: Callable[..., Any], args: Any, i: int, j: int
    ) -> Tensor | Routed:
        values, given = (without_graph(a), without_graph(b)), list(args)
        given[i], given[j] = values
        y: Tensor = func(*given)
        if self.before is None:
            return self._noted(name, y, *values)

        def back(above: Tensor) -> tuple[Tensor, Tensor]:
            z, w = values
            z0, w0 = self.at_baseline(at, name, z, w)
            middle = (z + z0) / 2, (w + w0) / 2
            return through_product(name, func, given, (i, j), middle, above)

        return Routed(y, back, a, b)

    def _softmax(
        self, at: int, name: str, a: Tensor, func: Callable[..., Any], behind: Any, kwargs: Any
    ) -> Tensor | Routed:
        z, dim = without_graph(a), behind[0] if behind else kwargs["dim"]
        y: Tensor = func(z, *behind, **kwargs)
        if self.before is None:
            return self._noted(name, y, z)

        def back(above: Tensor) -> tuple[Tensor]:
            (z0,) = self.at_baseline(at, name, z)
            return (through_softmax(above, z, z0, dim, name == "log_softmax"),)

        return Routed(y, back, a)

    def _maximum(self, name: str, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if "pool" in name:
            return self._bent(Differences._pooled, name, args[0], func, args[1:], kwargs)
        dim = args[1] if len(args) > 1 else kwargs.get("dim")
        if not isinstance(dim, int):
            raise self.refused(f"operation '{name}'", "only a maximum along one axis has a stated rule")
        keepdim = args[2] if len(args) > 2 else kwargs.get("keepdim", False)
        value = self._bent(Differences._largest, name, args[0], dim, keepdim)
        if name == "amax":
            return value
        # torch.max along an axis also says where, which cannot be followed: whoever reads it is refused
        where = self.do(ungraded, func, args, kwargs)
        return torch.return_types.max((value, where[1]))

    def _pooled(
        self, at: int, name: str, a: Tensor, func: Callable[..., Any], behind: Any, kwargs: Any
    ) -> Tensor | Routed:
        z = without_graph(a)
        y, winners = func(z, *behind, **{**kwargs, "return_indices": True})
        return self._won(at, name, a, (z, y, winners), int(name[-2]))

    def _largest(self, at: int, name: str, a: Tensor, dim: int, keepdim: bool) -> Tensor | Routed:
        z = without_graph(a)
        y, winners = z.max(dim, keepdim=True)
        return self._won(at, name, a, (z, y, winners), 1, dim, keepdim)

    def _won(
        self, at: int, name: str, a: Tensor, values: Three, axes: int, dim: int = -1, keepdim: bool = True
    ) -> Tensor | Routed:
        """A maximum in windows over the last axes, or in one along an axis."""
        y = values[1] if keepdim else values[1].squeeze(dim)
        if self.before is None:
            return self._noted(name, y, *values)

        def back(above: Tensor) -> tuple[Tensor]:
            above = above if keepdim else above.unsqueeze(dim)
            parts = (*values, *self.at_baseline(at, name, *values), above)
            if dim == -1:
                return (through_pool(axes, *parts),)
            return (through_pool(axes, *(v.transpose(dim, -1) for v in parts)).transpose(dim, -1),)

        return Routed(y, back, a)


def _beside(z0: Tensor, z: Tensor) -> bool:
    """Whether a baseline's value is of this very shape, or of one row of it, which kernels repeat."""
    one, here = z0.shape, z.shape
    return one == here or (len(one) == len(here) and one[0] == 1 and one[1:] == here[1:])


def apart(together: Record, first: Record, count: int) -> list[Record]:
    """The records of single rows in one of `count` of them; `first`, of one row, tells how these lie."""
    out: list[Record] = [[] for _ in range(count)]
    for at, (name, values) in enumerate(together):
        then, known = first[at] if at < len(first) else ("", ())
        parts = [_rows(z, z0, count) for z, z0 in zip(values, known, strict=False)]
        if then != name or not all(parts):
            raise NotApplicableError(
                f"{Differences.method} has no rule for operation '{name}': it does other things at some "
                "baselines than at others, or does not keep them apart"
            )
        for row, each in zip(out, zip(*parts, strict=True), strict=True):
            row.append((name, each))
    return out


def scattered(pair: Record, first: Record) -> str | None:
    """The first operation of two rows that sees several things of each, and not those of a row together."""
    for (name, (z, *_)), (_, (one, *_)) in zip(pair, first, strict=False):
        parts = _rows(z, one, 2)
        several = parts and max(m for n, m in zip(z.shape, one.shape, strict=True) if n != m) > 1
        if several and bool(((parts[0] - one).abs() > 1e-3 * one.abs().max()).any()):
            return name
    return None


def _rows(many: Tensor, one: Tensor, count: int) -> tuple[Tensor, ...]:
    """What belongs to each row, along the only axis where many are `count` times one; nothing if none is."""
    axes = [i for i, (n, m) in enumerate(zip(many.shape, one.shape, strict=False)) if n != m]
    if many.dim() != one.dim() or len(axes) != 1 or many.shape[axes[0]] != count * one.shape[axes[0]]:
        return ()
    return tuple(many.chunk(count, axes[0]))
