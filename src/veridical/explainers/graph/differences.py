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
    _over,
    _through_pool,
    _through_rectifier,
    _through_softmax,
)
from veridical.explainers.graph.follow import Follower
from veridical.explainers.graph.operations import kind_of, only_tensors
from veridical.explainers.graph.routes import route

Step = tuple[str, tuple[Tensor, ...]]
"""What a non-linear operation was given and answered at the baseline."""
_LINEAR = frozenset({"structure", "linear", "transposed", "average", "sum"})
_ELEMENTWISE = frozenset({"activation", "gate", "elementwise"})


class Differences(Follower):
    """Records the baseline's run (`record`), then passes differences to it back through another run."""

    method = "DeepLIFT"

    def __init__(self, x: Tensor, record: list[Step] | None = None) -> None:
        super().__init__(x)
        self.record: list[Step] = []
        self._known = record
        self._at = 0

    @property
    def decides(self) -> tuple[Any, ...]:
        return (self._known is None,)

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
        if kind in _LINEAR and not (kind in ("linear", "transposed") and any(map(self.carries, args[1:3]))):
            return self.do(func, *args, **kwargs)
        if name == "masked_fill" and not any(map(self.carries, (*args[1:], *kwargs.values()))):
            return self.do(func, *args, **kwargs)  # what is put there is the same at the baseline
        if kind in _ELEMENTWISE and self.carries(args[0]) and not any(map(self.carries, args[1:])):
            return self.do(Differences._elementwise, self, name, func, args, kwargs)
        if kind == "product":
            return self._product(name, func, *args, **kwargs)
        if kind == "matmul":
            return self._bilinear(name, func, args)
        if kind == "addmm" and self.carries(args[1]) and not (kwargs or self.carries(args[2])):
            return self.do(func, *args)
        if kind == "batch_norm" and not (args[5] if len(args) > 5 else kwargs.get("training", False)):
            return self.do(func, *args, **kwargs)
        if name in ("softmax", "log_softmax"):
            return self.do(Differences._softmax, self, name, func, args, kwargs)
        if kind == "maximum":
            return self.do(Differences._maximum, self, name, func, args, kwargs)
        if kind in ("norm", "spread", "attention", "recurrent"):
            return self._block(name, args, kwargs)
        why = "it is neither linear nor one that differences have a stated rule for"
        raise self.refused(f"operation '{name}'", kind if "mixes" in kind else why)

    def _block(self, name: str, args: Any, kwargs: Any) -> Any:
        try:
            with self:
                if name in decompose.BLOCKS:
                    return decompose.BLOCKS[name](*args, **kwargs)
                return decompose.recurrent(name, args)
        except (NotApplicableError, TypeError) as error:
            raise self.refusal or self.refused(f"operation '{name}'", str(error)) from None

    def _baseline(self, name: str, *values: Tensor) -> tuple[Tensor, ...] | None:
        """What the same operation was given at the baseline, laid out alike; None while that is recorded."""
        if self._known is None:
            self.record.append((name, tuple(v.detach() for v in values)))
            return None
        before = self._known[self._at] if self._at < len(self._known) else ("", ())
        self._at += 1
        if before[0] != name or len(before[1]) != len(values):
            raise self.refused(f"operation '{name}'", "the model takes another way at the baseline than here")
        return tuple(self._laid(name, z0, z) for z0, z in zip(before[1], values, strict=True))

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

    def _elementwise(self, name: str, func: Callable[..., Any], args: Any, kwargs: Any) -> Tensor:
        a = args[0]
        given = a.detach()
        leaf = given.clone().requires_grad_(True) if self._known is not None and name != "relu" else given
        with torch.set_grad_enabled(leaf.requires_grad):
            answer = func(leaf, *args[1:], **kwargs)
        y = answer.detach()
        before = self._baseline(name, given, y)
        if before is None:
            return y
        z0, y0 = before
        if name == "relu":
            return route(y, _through_rectifier(given, z0, y, y0), a)

        def back(above: Tensor) -> tuple[Tensor]:
            (plain,) = torch.autograd.grad(answer, leaf, above)
            return (_over((y - y0) * above, given - z0, plain),)

        return route(y, back, a)

    def _product(self, name: str, func: Callable[..., Any], a: Any, b: Any, **how: Any) -> Tensor:
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
        if self.carries(a) and self.carries(b):
            return self._bilinear(name, torch.mul, (a, b))
        linear: Tensor = self.do(operator.truediv if divides else operator.mul, a, b)
        return linear

    def _bilinear(self, name: str, func: Callable[..., Any], args: Any) -> Tensor:
        """What is linear in each of two: each has the mean of the other at baseline and input."""
        at = [i for i, v in enumerate(args) if self.carries(v)]
        if len(at) == 1:
            once: Tensor = self.do(func, *args)
            return once
        if len(at) != 2:
            raise self.refused(f"operation '{name}'", "only products of two activations have a stated rule")
        joint: Tensor = self.do(Differences._joint, self, name, func, args, at[0], at[1])
        return joint

    def _joint(self, name: str, func: Callable[..., Any], args: Any, i: int, j: int) -> Tensor:
        values = [v.detach() if isinstance(v, Tensor) else v for v in args]
        y: Tensor = func(*values)
        before = self._baseline(name, values[i], values[j])
        if before is None:
            return y
        a, b = values[i], values[j]
        middle_a, middle_b = (a + before[0]) / 2, (b + before[1]) / 2

        def back(above: Tensor) -> tuple[Tensor, Tensor]:
            def through(place: int, leaf: Tensor, other: int, constant: Tensor) -> Tensor:
                leaf, given = leaf.clone().requires_grad_(True), list(values)
                given[place], given[other] = leaf, constant
                with torch.enable_grad():
                    answer = func(*given)
                return torch.autograd.grad(answer, leaf, above)[0]

            return through(i, a, j, middle_b), through(j, b, i, middle_a)

        return route(y, back, args[i], args[j])

    def _softmax(self, name: str, func: Callable[..., Any], args: Any, kwargs: Any) -> Tensor:
        dim = args[1] if len(args) > 1 else kwargs["dim"]
        z = args[0].detach()
        y: Tensor = func(z, *args[1:], **kwargs)
        before = self._baseline(name, z)
        if before is None:
            return y
        return route(y, _through_softmax(z, before[0], dim, name == "log_softmax"), args[0])

    def _maximum(self, name: str, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        a, z = args[0], args[0].detach()
        if "pool" in name:
            y, winners = func(z, *args[1:], **{**kwargs, "return_indices": True})
            before = self._baseline(name, z, y, winners)
            return y if before is None else self._won(a, z, y, winners, before, int(name[-2]))
        dim = args[1] if len(args) > 1 else kwargs.get("dim")
        if not isinstance(dim, int):
            raise self.refused(f"operation '{name}'", "only a maximum along one axis has a stated rule")
        # as one window along the last axis
        a, z = a.transpose(dim, -1), z.transpose(dim, -1)
        y, winners = z.max(-1, keepdim=True)
        before = self._baseline(name, z, y, winners)
        value = y if before is None else self._won(a, z, y, winners, before, 1)
        value = value.transpose(dim, -1)
        keepdim = args[2] if len(args) > 2 else kwargs.get("keepdim", False)
        value = value if keepdim else value.squeeze(dim)
        # torch.max along an axis also says where, which cannot be followed: whoever reads it is refused
        return (
            value
            if name == "amax"
            else torch.return_types.max((value, func(args[0].detach(), *args[1:], **kwargs)[1]))
        )

    def _won(
        self, a: Tensor, z: Tensor, y: Tensor, at: Tensor, before: tuple[Tensor, ...], axes: int
    ) -> Tensor:
        z0, y0, at0 = before
        return route(y, _through_pool(z, z0, y, y0, at, at0, axes), a)
