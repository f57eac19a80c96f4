"""A captum attribution as an explainer of ours."""

from __future__ import annotations

import copy
import inspect
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from veridical.core.key import Key
from veridical.errors import ShapeError
from veridical.explainers.adapter_parts import _Adapter, _label, _over_inputs, _short, seeded_torch
from veridical.values.task import Task


@dataclass(frozen=True, eq=False)
class CaptumExplainer(_Adapter):
    """A captum method on the task's model.

    Methods that draw random numbers draw from torch's global generator, once per batch: it is seeded by the
    key and put back, so the same plan gives the same map, but another plan another draw.
    """

    attribution: Any = None
    """A captum class, or an object of one, which is set up again on the task's model."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Named arguments handed to captum's `attribute`."""

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"captum {_label(self.attribution)}"

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        from captum.attr._utils.attribution import PerturbationAttribution

        kind = self.attribution if isinstance(self.attribution, type) else type(self.attribution)
        return frozenset() if issubclass(kind, PerturbationAttribution) else frozenset({"gradient"})

    @property
    def stochastic(self) -> bool:  # type: ignore[override]
        label = _label(self.attribution)
        return any(word in label for word in ("Shap", "Lime", "NoiseTunnel", "Sampling"))

    def _described(self) -> str:
        return ", ".join(f"{name}={_short(value)}" for name, value in self.kwargs.items())

    def rows_per_sample(self, task: Task) -> int:
        if "internal_batch_size" in self.kwargs:
            return 1
        steps = self.kwargs.get("n_steps", self.kwargs.get("nt_samples"))
        if steps is None and "IntegratedGradients" in _label(self.attribution):
            steps = 50  # captum's own default
        return int(steps or 1)

    def attribute(self, task: Task, key: Key) -> Tensor:
        names = list(task.side) if isinstance(task.side, dict) else []
        extra = tuple(task.side.values()) if isinstance(task.side, dict) else task.side
        exposed = task.predictor.exposed()
        with task.session(grad=True), exposed as model, seeded_torch(key / int(task.draw_ids[0])):
            method = self._bound(_ByPosition(model, names) if names else model)
            kwargs = dict(self.kwargs)
            accepted = inspect.signature(method.attribute).parameters
            passes_on = any(p.kind is p.VAR_KEYWORD for p in accepted.values())
            if "target" in accepted or passes_on:
                kwargs.setdefault("target", task.targets)
            if extra and ("additional_forward_args" in accepted or passes_on):
                kwargs.setdefault("additional_forward_args", extra)
            rows = task.inputs.detach().clone().requires_grad_("gradient" in self.needs)
            maps = method.attribute(rows, **kwargs)
        if isinstance(maps, tuple) and len(maps) == 1:
            maps = maps[0]
        if not isinstance(maps, Tensor):
            raise ShapeError(f"'{self.name}' gave a {type(maps).__name__}; expected one tensor of maps")
        return _over_inputs(maps.detach(), task, self.name)

    def _bound(self, model: nn.Module) -> Any:
        if isinstance(self.attribution, type) or not hasattr(self.attribution, "attribute"):
            return self.attribution(model)
        return _rebound(self.attribution, model)


def _rebound(attribution: Any, model: nn.Module) -> Any:
    """A copy of a captum object, and of the objects it wraps, that asks this model instead of its own."""
    twin = copy.copy(attribution)
    for name in ("forward_func", "model"):
        if hasattr(twin, name):
            setattr(twin, name, model)
    for name, value in vars(attribution).items():
        if hasattr(value, "attribute") and hasattr(value, "forward_func"):
            setattr(twin, name, _rebound(value, model))
    return twin


class _ByPosition(nn.Module):
    """The counted model with its named side inputs given by position, as captum passes them."""

    def __init__(self, module: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.module = module
        self.names = names

    def forward(self, x: Tensor, *values: Any) -> Tensor:
        answer: Tensor = self.module(x, **dict(zip(self.names, values, strict=True)))
        return answer
