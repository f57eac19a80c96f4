"""Differences to a baseline through every operation of a model (DeepLIFT), so that none is lost.

Linear operations pass differences on as they are. A non-linear one has a multiplier for each thing it is
given, such that multipliers times differences sum to the change of its output:

    f(z)        (f(z) - f(z0)) / (z - z0), the slope between baseline and input (the rescale rule)
    a * b, a @ b    (b + b0) / 2 for a, (a + a0) / 2 for b
    softmax     exp(z - log of the sum of exp(z)): exponentials, a sum and a logarithm, each by the above;
                no multiplier is beyond 1, however far the baseline is; its logarithm likewise
    maximum     its change goes to the winner of the side whose maximum is larger

Norms, attention and recurrent layers are taken apart into these (`decompose`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from veridical.errors import NotApplicableError
from veridical.explainers.trace import decompose
from veridical.explainers.trace.operations import kind_of, only_tensors
from veridical.explainers.trace.tracer import Tracer, pulled, route, without_graph

Record = list[tuple[str, tuple[Tensor, ...]]]
"""What each non-linear operation was given and gave at a baseline."""
Three = tuple[Tensor, Tensor, Tensor]
"""What a maximum was given, its output, and where that lay."""
_LINEAR = frozenset({"structure", "linear", "transposed", "average", "sum"})
_ELEMENTWISE = frozenset({"activation", "gate", "elementwise"})


class Differences(Tracer):
    """One run of a model: at a baseline, where all is recorded, or at x, whose differences go back.

    They are taken to the record `before`. It is read on the way back, so that one run of x serves many.
    """

    method = "DeepLIFT"

    def __init__(self, x: Tensor, before: Record | None = None) -> None:
        super().__init__(x)
        self.record: Record = []
        self.before = before
        self._seen = 0

    def rule(self, name: str, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        kind = kind_of(name, args, kwargs)
        if kind == "compare":
            return func(*args, **kwargs)  # whatever reads it is refused
        for held in self.all_detached(args, kwargs):
            raise self.refused(
                f"operation '{name}'", f"of what it is given a part carries no difference: {held.why}"
            )
        if not args and "input" in kwargs:
            args = (kwargs.pop("input"),)
        value = self._by_kind(kind, name, func, args, kwargs)
        if not only_tensors(value):
            raise self.refused(f"operation '{name}'", "the model chooses its way by the values of its input")
        return value

    def rule_of_detached(self, name: str, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        value = super().rule_of_detached(name, func, args, kwargs)
        if not only_tensors(value):
            raise self.refused(f"operation '{name}'", "the model chooses its way by the values of its input")
        return value

    def _by_kind(self, kind: str, name: str, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        # weights, bounds and what is put into a mask: the same at the baseline
        settled = not any(map(self.is_attributed, (*args[1:], *kwargs.values())))
        if kind in _LINEAR and (settled or kind not in ("linear", "transposed")):
            return func(*args, **kwargs)
        if name == "masked_fill" and settled:
            return func(*args, **kwargs)
        if kind in _ELEMENTWISE and self.is_attributed(args[0]) and settled:
            if name == "relu":
                return self._nonlinear(self._rectified, name, args[0])
            return self._nonlinear(self._elementwise, name, args[0], func, args[1:], kwargs)
        if kind == "product":
            return self._product(name, *args, **kwargs)
        if kind == "matmul":
            return self._bilinear(name, func, args)
        if kind == "addmm" and self.is_attributed(args[1]) and not (kwargs or self.is_attributed(args[2])):
            return func(*args)
        if kind == "batch_norm" and settled and not (args[5:6] == (True,) or kwargs.get("training", False)):
            return func(*args, **kwargs)
        if name in ("softmax", "log_softmax"):
            return self._nonlinear(self._softmax, name, args[0], func, args[1:], kwargs)
        if kind == "maximum":
            return self._maximum(name, func, args, kwargs)
        if kind in ("norm", "spread", "attention", "recurrent"):
            return self._block(name, args, kwargs)
        why = "it is neither linear nor one that differences have a stated rule for"
        raise self.refused(f"operation '{name}'", kind if "mixes" in kind else why)

    def _nonlinear(self, step: Callable[..., Any], name: str, a: Tensor, *how: Any) -> Any:
        """A non-linear operation, known by its number in this run."""
        if self.before is not None:
            self.at_baseline(self._seen, name, a, *(v for v in how if isinstance(v, Tensor)))
        value = step(self._seen, name, a, *how)
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
        """What an operation was given and gave at the baseline, fit to stand beside these values."""
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

    def _rectified(self, at: int, name: str, a: Tensor) -> Tensor:
        z = a.detach()
        y = torch.relu(z)
        if self.before is None:
            return self._noted(name, y, z, y)
        return route(y, lambda above: (rescaled(above, z, y, *self.at_baseline(at, name, z, y)),), a)

    def _elementwise(
        self, at: int, name: str, a: Tensor, func: Callable[..., Any], behind: Any, kwargs: Any
    ) -> Tensor:
        z = a.detach()
        if self.before is None:
            y = func(z, *behind, **kwargs)
            return self._noted(name, y, z, y)
        y, pull = pulled(lambda leaf: func(leaf, *behind, **kwargs), a)

        def back(above: Tensor) -> tuple[Tensor]:
            z0, y0 = self.at_baseline(at, name, z, y)
            return (over((y - y0) * above, z - z0, pull(above)),)

        return route(y, back, a)

    def _product(self, name: str, a: Any, b: Any, **how: Any) -> Tensor:
        if name in ("rdiv", "rtruediv"):
            a, b = b, a
        divides = "div" in name
        if divides and how:
            raise self.refused(f"operation '{name}'", "only a plain quotient has a stated rule")
        if divides and self.is_attributed(b):
            with self:
                inverse = torch.reciprocal(b)
                product: Tensor = torch.mul(inverse, a)
            return product
        if divides:
            return self._bilinear("div", operator.truediv, (a, b))
        return self._bilinear("mul", torch.mul, (a, b))

    def _bilinear(self, name: str, func: Callable[..., Any], args: Any) -> Tensor:
        """What is linear in each of two: each has the mean of the other at baseline and input."""
        places = [i for i, v in enumerate(args) if self.is_attributed(v)]
        if len(places) == 1:
            return func(*args)
        if len(places) != 2:
            raise self.refused(f"operation '{name}'", "only products of two activations have a stated rule")
        i, j = places
        joint: Tensor = self._nonlinear(self._joint, name, args[i], args[j], func, args, i, j)
        return joint

    def _joint(
        self, at: int, name: str, a: Tensor, b: Tensor, func: Callable[..., Any], args: Any, i: int, j: int
    ) -> Tensor:
        values, given = (a.detach(), b.detach()), list(args)
        given[i], given[j] = values
        y: Tensor = func(*given)
        if self.before is None:
            return self._noted(name, y, *values)

        def back(above: Tensor) -> tuple[Tensor, Tensor]:
            z, w = values
            z0, w0 = self.at_baseline(at, name, z, w)
            middle = (z + z0) / 2, (w + w0) / 2
            return through_product(name, func, given, (i, j), middle, above)

        return route(y, back, a, b)

    def _softmax(
        self, at: int, name: str, a: Tensor, func: Callable[..., Any], behind: Any, kwargs: Any
    ) -> Tensor:
        z, dim = a.detach(), behind[0] if behind else kwargs["dim"]
        y: Tensor = func(z, *behind, **kwargs)
        if self.before is None:
            return self._noted(name, y, z)

        def back(above: Tensor) -> tuple[Tensor]:
            (z0,) = self.at_baseline(at, name, z)
            return (through_softmax(above, z, z0, dim, name == "log_softmax"),)

        return route(y, back, a)

    def _maximum(self, name: str, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if "pool" in name:
            return self._nonlinear(self._pooled, name, args[0], func, args[1:], kwargs)
        dim = args[1] if len(args) > 1 else kwargs.get("dim")
        if not isinstance(dim, int):
            raise self.refused(f"operation '{name}'", "only a maximum along one axis has a stated rule")
        keepdim = args[2] if len(args) > 2 else kwargs.get("keepdim", False)
        value = self._nonlinear(self._largest, name, args[0], dim, keepdim)
        if name == "amax":
            return value
        # torch.max along an axis also says where, which cannot be followed: whoever reads it is refused
        where = without_graph(func, args, kwargs)
        return torch.return_types.max((value, where[1]))

    def _pooled(
        self, at: int, name: str, a: Tensor, func: Callable[..., Any], behind: Any, kwargs: Any
    ) -> Tensor:
        z = a.detach()
        y, winners = func(z, *behind, **{**kwargs, "return_indices": True})
        return self._won(at, name, a, (z, y, winners), int(name[-2]))

    def _largest(self, at: int, name: str, a: Tensor, dim: int, keepdim: bool) -> Tensor:
        z = a.detach()
        y, winners = z.max(dim, keepdim=True)
        return self._won(at, name, a, (z, y, winners), 1, dim, keepdim)

    def _won(
        self, at: int, name: str, a: Tensor, values: Three, axes: int, dim: int = -1, keepdim: bool = True
    ) -> Tensor:
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

        return route(y, back, a)


def _beside(z0: Tensor, z: Tensor) -> bool:
    """Whether a baseline's value is of this very shape, or of one row of it, which kernels repeat."""
    one, here = z0.shape, z.shape
    return one == here or (len(one) == len(here) and one[0] == 1 and one[1:] == here[1:])


def apart(together: Record, first: Record, count: int) -> list[Record]:
    """The records of single rows in one of `count` of them; `first`, of one row, shows how these lie."""
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


# --- what non-linear operations pass back -----------------------------------------------------------------


def rescaled(above: Tensor, z: Tensor, y: Tensor, z0: Tensor, y0: Tensor) -> Tensor:
    """What a ReLU passes back: above times its slope, (z+ + z0+) / (|z| + |z0|), 1 or 0 where z is z0.

    As |z| = 2 z+ - z that is above / (2 - (z + z0) / (z+ + z0+)). Of two zeros the baseline's is taken for
    the smallest number below 0, which leads to the slope 0 and changes nothing else.
    """
    steep = z + (z0 - torch.finfo(z.dtype).tiny)
    return above / steep.div_(y + y0).neg_().add_(2)


def through_product(
    name: str,
    func: Callable[..., Tensor],
    given: Sequence[Any],
    places: tuple[int, int],
    middle: tuple[Tensor, Tensor],
    above: Tensor,
) -> tuple[Tensor, Tensor]:
    """What a product passes back to each of two: what comes from above, by the middle of the other."""
    a, b = middle
    if func is torch.mul:
        return (above * b).sum_to_size(a.shape), (above * a).sum_to_size(b.shape)
    if name in ("matmul", "bmm") and a.dim() > 2 and a.shape[:-2] == b.shape[:-2] and places == (0, 1):
        return torch.matmul(above, b.mT), torch.matmul(a.mT, above)

    def through(place: int, value: Tensor, other: int, fixed: Tensor) -> Tensor:
        def function(leaf: Tensor) -> Tensor:
            now = list(given)
            now[place], now[other] = leaf, fixed
            return func(*now)

        return pulled(function, value)[1](above)

    i, j = places
    return through(i, a, j, b), through(j, b, i, a)


def through_softmax(above: Tensor, z: Tensor, z0: Tensor, dim: int, logarithm: bool = False) -> Tensor:
    """What a softmax passes back, as exp(u) with u = z - log s, s the sum of exp(z); or u, its logarithm."""
    log_s, log_s0 = (v.logsumexp(dim, keepdim=True) for v in (z, z0))
    top = torch.maximum(log_s, log_s0)  # what is exponentiated is at most 1
    sums = _slope((log_s - top).exp(), (log_s0 - top).exp(), log_s, log_s0)
    shares = _slope((z - top).exp(), (z0 - top).exp(), z, z0) / sums
    if not logarithm:
        u, u0 = z - log_s, z0 - log_s0
        above = above * _slope(u.exp(), u0.exp(), u, u0)
    return above - shares * above.sum(dim, keepdim=True)


def _slope(e: Tensor, e0: Tensor, z: Tensor, z0: Tensor) -> Tensor:
    """The slope of an exponential between z0 and z, given its values; where they agree, its gradient."""
    away = z - z0
    # what is masked is minus infinity at both ends, and their difference no number
    near = ~(away.abs() > (1e-10 if z.dtype == torch.float64 else 1e-5))
    return torch.where(near, (e + e0) / 2, (e - e0) / torch.where(near, torch.ones_like(away), away))


def over(given: Tensor, away: Tensor, plain: Tensor) -> Tensor:
    """`given` over the change of the inputs, or the plain gradient where they hardly change."""
    # below this difference a slope would be mostly rounding
    away = F.hardshrink(away, 1e-10 if away.dtype == torch.float64 else 1e-6)
    # 1 where they agree, else 0: arithmetic, which a CPU vectorises as it does not a choice
    near = away.sign().square_().neg_().add_(1)
    return given.div_(away.add_(near)).lerp_(plain, near)


def through_pool(
    pooled: int, z: Tensor, y: Tensor, at: Tensor, z0: Tensor, y0: Tensor, at0: Tensor, above: Tensor
) -> Tensor:
    """What a maximum passes back: its change, to the winner of the side whose maximum is larger.

    Of a rise the input's winner gets the share that it rose by, of a fall the baseline's that it fell by. A
    winner that stays where it was gets all, as in a gradient. Windows are over the last `pooled` axes.
    """
    share = y - y0
    place = torch.where(share < 0, at0, at).flatten(-pooled)
    here = z.flatten(-pooled)
    rise = here.gather(-1, place).sub_(z0.flatten(-pooled).expand_as(here).gather(-1, place))
    share = share.flatten(-pooled).div_(rise).nan_to_num_(1.0).mul_(above.flatten(-pooled))
    return here.new_zeros(here.shape).scatter_add_(-1, place, share).view(z.shape)
