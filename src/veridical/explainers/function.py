"""A user's own function as an explainer."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from veridical.core.key import Key
from veridical.errors import check_arity
from veridical.explainers.adapter_parts import seeded_numpy, seeded_torch
from veridical.explainers.base import Explainer
from veridical.values.task import Task


@dataclass(frozen=True)
class FunctionExplainer(Explainer):
    """`function(model, inputs, targets) -> maps`; side inputs and `key` only if its signature names them.

    The function gets a private copy of the model, whose calls are counted and whose weights are those of the
    world it is asked in, and rows that fit one chunk. The global generators of torch and numpy are seeded for
    it, so that the same seed gives the same maps.
    """

    function: Callable[..., Any] = len  # always replaced by the caller's
    """The caller's function."""
    label: str = ""
    """Name in results; empty takes the function's own."""
    needs: ClassVar[frozenset[str]] = frozenset()

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.label or getattr(self.function, "__name__", type(self.function).__name__)

    def attribute(self, task: Task, key: Key) -> Tensor:
        offered: dict[str, Any] = {"key": key}
        if isinstance(task.side, dict):
            offered |= task.side
        else:
            offered["side"] = task.side
        try:
            named = inspect.signature(self.function).parameters
        except (TypeError, ValueError):
            named = {}  # type: ignore[assignment]
        extra = {name: value for name, value in offered.items() if name in named}
        check_arity(self.function, 3, extra, "an explainer is a function (model, inputs, targets) -> maps")
        own = key / int(task.draw_ids[0])
        exposed = task.predictor.exposed()
        with task.session(grad=True), exposed as model, seeded_torch(own), seeded_numpy(own):
            # a copy: users ask gradients of what they get, or write into it
            maps = self.function(model, task.inputs.clone(), task.targets, **extra)
        return task.values(maps, f"the map of '{self.name}'")
