"""Asking a model: a question is one result in the making, a session a model ready to be asked.

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
from torch import nn
from torch.nn.modules.conv import _ConvNd

from veridical.model.cost import Cost

if TYPE_CHECKING:
    from veridical.model.plan import Plan, Precision
    from veridical.model.predictor import CountedModel, Predictor

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
    """One result in the making: its model is looked at once, its rows are counted, its looks gathered.

    While it is open, sessions of this thread need not look again whether the model has changed. With
    `later=False` mistakes are looked for at once, also on a GPU.
    """

    cost: Cost
    """Rows asked while it was open; known when it is closed."""
    halvings: int
    """How often a chunk was halved because memory ran out; known when it is closed."""

    def __init__(self, predictor: Predictor, later: bool = True) -> None:
        self._source, self._later = predictor.source, later
        self._tally = predictor.meter.here
        self._before = replace(self._tally)
        self.unchecked: list[Look] = []
        """What is still to be looked at when the result is read."""

    def __enter__(self) -> Question:
        own = self._source.thread.private
        self._token = _COLLECTED.set(self.unchecked if self._later else _COLLECTED.get())
        own.questions += 1
        try:
            if own.questions == 1:
                self._source.guard.check(thorough=True)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: Any) -> None:
        self._source.thread.private.questions -= 1
        _COLLECTED.reset(self._token)
        self.cost, self.halvings = self.so_far, self._tally.halvings - self._before.halvings

    @property
    def so_far(self) -> Cost:
        """Rows asked since it was opened."""
        now, before = self._tally, self._before
        return Cost(now.forward - before.forward, now.backward - before.backward)


class Session(AbstractContextManager["CountedModel"]):
    """A predictor's private copy made ready, for as long as the block lasts; written for short blocks.

    The first session of a thread looks whether the caller's model has changed, unless it is part of a
    question, which has.
    """

    def __init__(self, predictor: Predictor, grad: bool | None = False) -> None:
        self._predictor, self._grad = predictor, grad

    def __enter__(self) -> CountedModel:
        predictor = self._predictor
        own = predictor.source.thread.private
        self._planned: AbstractContextManager[None] = _NOTHING
        if not own.sessions:
            if not own.questions:
                predictor.source.guard.check()
            self._planned = _as_planned(predictor.plan, predictor.device.type)
        self._planned.__enter__()
        try:
            if not own.sessions:
                own.look()
            if own.loaded is not predictor.weights:
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
    precision = _NOTHING if plan.precision is None or kind != "cuda" else _float32_products(plan.precision)
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


def uses_tf32(model: nn.Module, plan: Plan) -> bool:
    """Whether a GPU multiplies float32 as TF32 in this model: as the plan says, else as torch is set.

    By torch's defaults convolutions and recurrent layers do, products of matrices do not.
    """
    if plan.precision is not None:
        return plan.precision == "tf32"
    cudnn: Any = torch.backends.cudnn
    kinds = [(torch.backends.cuda.matmul, nn.Module), (cudnn.conv, _ConvNd), (cudnn.rnn, nn.RNNBase)]
    shortened = tuple(layer for kind, layer in kinds if kind.fp32_precision == "tf32")
    floats = any(p.dtype == torch.float32 for p in model.parameters())
    return floats and bool(shortened) and any(isinstance(m, shortened) for m in model.modules())


@contextmanager
def _float32_products(precision: Precision) -> Iterator[None]:
    """How CUDA multiplies float32, and back as it was.

    By the settings that have been there since torch 2.9: once a user has touched those, reading the older
    `allow_tf32` raises.
    """
    cudnn: Any = torch.backends.cudnn
    kinds = (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn)
    before = [kind.fp32_precision for kind in kinds]
    try:
        for kind in kinds:
            kind.fp32_precision = "tf32" if precision == "tf32" else "ieee"
        yield
    finally:
        for kind, was in zip(kinds, before, strict=True):
            kind.fp32_precision = was
