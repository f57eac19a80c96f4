"""Asking a model: each thread's private copy, a session in which it is ready, a question of one result.

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
from torch import Tensor, nn

from veridical.models.cost import Cost
from veridical.models.fingerprint import modules, version
from veridical.models.lending import Remembered
from veridical.models.plan import Plan, float32_products

if TYPE_CHECKING:
    from veridical.models.predictor import CountedModel, Predictor
    from veridical.models.private_copy import Source
    from veridical.models.weights import Weights

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


UNKNOWN: Any = object()
"""In the place of weights: somebody may have written others."""


class _Buffer:
    """One buffer of the caller's model, and the tensor that stands for it in a copy."""

    def __init__(self, theirs: nn.Module, ours: nn.Module, name: str) -> None:
        self._theirs, self._table, self._name = theirs._buffers, ours._buffers, name
        self._tensor = ours._buffers[name]

    def state(self) -> tuple[int, int]:
        """Which tensor is there now, and how often it was written to."""
        now = self._table[self._name] if self._name in self._table else None  # noqa: SIM401 (a script has no get)
        return id(now), -1 if now is None else version(now)

    def restore(self) -> None:
        """Put the caller's value back."""
        value, own = self._theirs[self._name], self._tensor
        if value is not None and own is not None:
            own.copy_(value)
        self._table[self._name] = own


def _held(module: nn.Module) -> list[str]:
    return [name for name, value in module._buffers.items() if value is not None]


class Private:
    """One thread's copy of a model, and which weights are written into it."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.module = source.copied()
        self.sessions = 0
        """How many sessions of this thread are open."""
        self.questions = 0
        """How many results are being made in this thread: the first looked whether the model has changed."""
        self.loaded: Weights | None = None
        """The weights that are in the copy: None the caller's own, UNKNOWN perhaps somebody else's."""
        self._own: list[Tensor] = []
        self._clean: list[Tensor] = []
        self._buffers: list[_Buffer] = []
        if not source.shared:
            # by name: a copy that somebody else made may list its layers in another order
            clean, copies = dict(source.module.named_parameters()), dict(source.module.named_modules())
            self._own, self._clean = [self.parameters[name] for name in clean], list(clean.values())
            there = dict(self.module.named_modules())
            both = [(theirs, there[name]) for name, theirs in copies.items() if name in there]
            self._buffers = [
                _Buffer(theirs, ours, n) for theirs, ours in both for n in _held(theirs) if n in ours._buffers
            ]
        self._versions = self._buffer_versions()
        if not source.shared:
            self._rest()
        if source.copier is not None:
            self.loaded, self._versions = UNKNOWN, []
        self._written = self._parameter_versions()

    def _rest(self) -> None:
        """Eval mode; on a GPU recurrent layers train without dropout: else cuDNN gives no gradients."""
        self.module.eval()
        for module in modules(self.module):
            if isinstance(module, nn.RNNBase) and any(p.is_cuda for p in module.parameters(recurse=False)):
                module.dropout = 0.0
                module.training = True
                module.flatten_parameters()

    @property
    def parameters(self) -> dict[str, Tensor]:
        """The copy's own parameters by name."""
        return dict(self.module.named_parameters())

    def load(self, weights: Weights | None) -> None:
        """Write these weights into the copy, unless they are there; None are the caller's own."""
        if self.loaded is weights:
            return
        self.loaded = UNKNOWN
        with torch.no_grad():
            if self._own:
                torch._foreach_copy_(self._own, self._clean)
            if weights is not None:
                weights.write(self.parameters)
        self.loaded = weights
        self._written = self._parameter_versions()

    def look(self) -> None:
        """Before a first question: whatever somebody else has written into the copy is undone."""
        if self._parameter_versions() != self._written:
            self.loaded = UNKNOWN
        self.restore_buffers()

    def _parameter_versions(self) -> list[int]:
        return [-1 if own.is_inference() else own._version for own in self._own]

    def restore_buffers(self) -> None:
        """Put back what a forward pass wrote into buffers: an answer must not depend on earlier ones."""
        if self._buffer_versions() == self._versions:
            return
        with torch.no_grad():
            for buffer in self._buffers:
                buffer.restore()
        self._versions = self._buffer_versions()

    def _buffer_versions(self) -> list[tuple[int, int]]:
        return [buffer.state() for buffer in self._buffers]

    @contextmanager
    def lent(self) -> Iterator[nn.Module]:
        """The copy for code that is not ours: whatever it changes is put back, also when it raises."""
        if self._source.shared:
            yield self.module
            return
        before = Remembered(self.module)
        try:
            yield self.module
        finally:
            before.put_back()
            self.loaded = UNKNOWN


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
                self._source.guard.check()
                for device, look in self._source.guard.check_weights(AT_ONCE):
                    look_later(device, look)
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
