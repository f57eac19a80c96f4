"""A session in which this thread's copy of a model is ready to be run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from veridical.models.plan import Plan, float32_products

if TYPE_CHECKING:
    from veridical.models.predictor import CountedModel, Predictor

_NOTHING = nullcontext()


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
