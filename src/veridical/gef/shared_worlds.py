"""Several explainers in one noisy world: its weights are drawn, and its model asked, once for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from veridical.core.key import Key
from veridical.explainers.first_maps import FirstMaps, watched
from veridical.gef.worlds import Perturbation, Worlds
from veridical.models.cost import Cost
from veridical.models.weights import Noise
from veridical.values.task import Task


@dataclass(eq=False)
class SharedWorld:
    """The latest world and what its model answered, for all explainers that meet it."""

    draw: Callable[[Key], Noise] | None = None
    """Gives weight noise by key."""
    _around: Worlds | None = None
    _name: Any = None
    _world: Task | None = None
    _outputs: Tensor | None = None

    def around(self, task: Task, perturb: Perturbation) -> Worlds:
        """The worlds around this task."""
        if self._around is None or self._around.origin is not task:
            self._around = Worlds(task, perturb, self.draw)
        return self._around

    def world(self, name: Any, make: Callable[[], Task]) -> Task:
        """The world of this name, made unless it is the latest."""
        if self._world is None or name != self._name:
            self._name, self._world, self._outputs = name, make(), None
        return self._world

    def outputs(self, world: Task, ask: Callable[[], Tensor]) -> Tensor:
        """The answers of a world, kept if it is the latest."""
        if world is not self._world:
            return ask()
        if self._outputs is None:
            self._outputs = ask()
        return self._outputs


@dataclass(eq=False)
class Company:
    """Who is still there: an explainer that raises is left out with its error, the others go on."""

    members: Mapping[str, Any]
    """All explainers by name."""
    errors: dict[str, Exception] = field(default_factory=dict)
    """What those raised that are left out."""
    costs: dict[str, Cost] = field(default_factory=dict)
    """What each one asked."""
    first: dict[str, FirstMaps] = field(default_factory=dict)
    """What is noticed of each one's maps."""

    def __iter__(self) -> Iterator[str]:
        return iter([who for who in self.members if who not in self.errors])

    @contextmanager
    def at_work(self, who: str, task: Task) -> Iterator[None]:
        """Count what this one asks, and keep its error; rows that serve all are counted with the first."""
        before = task.predictor.meter.cost
        try:
            with watched(self.first.get(who)):
                yield
        except Exception as error:
            self.errors[who] = error
        finally:
            self.costs[who] = self.costs.get(who, Cost()) + (task.predictor.meter.cost - before)
