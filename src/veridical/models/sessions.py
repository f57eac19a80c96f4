"""Asking a model: a session in which this thread's copy of it is ready, a question of one result.

A question is one result in the making; sessions are opened while it is, and write the weights of their world
into the copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from veridical.models.cost import Cost
from veridical.models.plan import Plan, float32_products

if TYPE_CHECKING:
    from veridical.models.predictor import CountedModel, Predictor

_NOTHING = nullcontext()


class Question(AbstractContextManager["Question"]):
    """One result in the making, whose rows are counted."""

    cost: Cost
    """Rows asked while it was open; known when it is closed."""
    halvings: int
    """How often a chunk was halved because memory ran out; known when it is closed."""

    def __init__(self, predictor: Predictor) -> None:
        predictor.source.check()
        self._tally = predictor.meter.here
        self._before = replace(self._tally)

    def __enter__(self) -> Question:
        return self

    def __exit__(self, *error: Any) -> None:
        self.cost, self.halvings = self.so_far, self._tally.halvings - self._before.halvings

    @property
    def so_far(self) -> Cost:
        """Rows asked since it was opened."""
        now, before = self._tally, self._before
        return Cost(now.forward - before.forward, now.backward - before.backward, now.rows - before.rows)


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
