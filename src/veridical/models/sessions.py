"""Asking a model: a session in which this thread's copy of it is ready, a question of one result.

A question is one result in the making; sessions are opened while it is, and write the weights of their world
into the copy.

To look at a number on a GPU is to wait until all that was asked of it before is done, and in the meantime it
is asked nothing new. So a result is made without looking: its question gathers what could be wrong with it
(`look_later`), and that is looked at when somebody reads it. On a CPU each look is taken at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from veridical.models.cost import Cost
from veridical.models.plan import Plan, float32_products

if TYPE_CHECKING:
    from veridical.models.predictor import CountedModel, Predictor

Look = Callable[[], None]
"""Raises if something is wrong."""

AT_ONCE = {"cpu"}
"""Kinds of device at which to look at a number is to wait for nothing."""

_NOTHING = nullcontext()
_COLLECTED: ContextVar[list[Look] | None] = ContextVar("looks of a result", default=None)


def can_look(device: torch.device) -> bool:
    """Whether to look at a number there is to wait for nothing."""
    return device.type in AT_ONCE


def look_later(device: torch.device, look: Look) -> None:
    """Look when the result that is being made is read; at once on a CPU, or where nobody collects."""
    looks = _COLLECTED.get()
    if looks is None or device.type in AT_ONCE:
        look()
    else:
        looks.append(look)


class Question(AbstractContextManager["Question"]):
    """One result in the making: its rows are counted, its looks gathered.

    With `later=False` mistakes are looked for at once, also on a GPU.
    """

    cost: Cost
    """Rows asked while it was open; known when it is closed."""
    halvings: int
    """How often a chunk was halved because memory ran out; known when it is closed."""

    def __init__(self, predictor: Predictor, later: bool = True) -> None:
        predictor.source.check()
        self._later = later
        self._tally = predictor.meter.here
        self._before = replace(self._tally)
        self.unchecked: list[Look] = []
        """What is still to be looked at when the result is read."""

    def __enter__(self) -> Question:
        self._token = _COLLECTED.set(self.unchecked if self._later else _COLLECTED.get())
        return self

    def __exit__(self, *error: Any) -> None:
        _COLLECTED.reset(self._token)
        self.cost, self.halvings = self.so_far, self._tally.halvings - self._before.halvings

    @property
    def so_far(self) -> Cost:
        """Rows asked since it was opened."""
        now, before = self._tally, self._before
        return Cost(now.forward - before.forward, now.backward - before.backward)


class Session(AbstractContextManager["CountedModel"]):
    """A predictor's working copy made ready, for as long as the block lasts; written for short blocks.

    The first session of a thread refuses where the caller's model has changed.
    """

    def __init__(self, predictor: Predictor, grad: bool | None = False) -> None:
        self._predictor, self._grad = predictor, grad

    def __enter__(self) -> CountedModel:
        predictor = self._predictor
        own = predictor.source.working
        self._planned: AbstractContextManager[None] = _NOTHING
        if not own.sessions:
            predictor.source.check()
            self._planned = _as_planned(predictor.plan, predictor.device.type)
        self._planned.__enter__()
        try:
            if not own.sessions:
                own.restore_buffers()
            own.load(predictor.weights)
        except BaseException as error:
            self._planned.__exit__(type(error), error, error.__traceback__)
            raise
        self._own, self._graded = own, torch.is_grad_enabled()
        own.sessions += 1
        if self._grad is not None:
            torch.set_grad_enabled(self._grad)
        return predictor.view

    def __exit__(self, *error: Any) -> None:
        if self._grad is not None:
            torch.set_grad_enabled(self._graded)
        self._own.sessions -= 1
        self._planned.__exit__(*error)


@contextmanager
def _as_planned(plan: Plan, kind: str) -> Iterator[None]:
    """The plan's threads and precision on a kind of device, and back as it was."""
    threads = torch.get_num_threads()
    precision = _NOTHING if plan.precision is None or kind != "cuda" else float32_products(plan.precision)
    try:
        if plan.threads is not None and plan.threads != threads:
            torch.set_num_threads(plan.threads)
        with precision, _autocast(plan.autocast, kind):
            yield
    finally:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)


def _autocast(wanted: str | None, kind: str) -> AbstractContextManager[None]:
    """The plan's autocast; where it asks for none, that of a caller is kept out."""
    if wanted is not None:
        return torch.autocast(kind, dtype=getattr(torch, wanted))
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else _NOTHING
