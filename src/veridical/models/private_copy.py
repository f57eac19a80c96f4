"""The caller's model: guarded, and copied for every thread that asks.

Nothing here ever writes to the caller's module: not its parameters, buffers, hooks or flags. Whoever asks or
explains works on a private copy (`sessions.Private`), into which the weights of each world are written.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from veridical.errors import NotApplicableError
from veridical.models.fingerprint import Guard, modules
from veridical.models.sessions import Private

Copier = Callable[[nn.Module], nn.Module]
"""Makes an independent copy of a model."""


class Source:
    """The caller's model: it is read, watched for changes, and copied once for every thread that asks."""

    def __init__(
        self,
        module: nn.Module,
        copier: Copier | None = None,
        shared: bool = False,
        scratch: frozenset[tuple[int, str]] = frozenset(),
        writes_rows: bool = False,
    ) -> None:
        self.module = module
        self.copier = copier
        self.shared = shared
        """Whether it is no torch module (a function, an estimator) and is run as it is."""
        self.writes_rows = writes_rows
        """Whether it writes into the rows it is given, so that it gets copies of them."""
        self._begin(scratch)

    def spare_rows(self) -> None:
        """From now on the model gets copies of its rows: it writes into what it is given."""
        if isinstance(self.module, torch.jit.ScriptModule):
            raise NotApplicableError(
                "the model writes into the rows it is given (an in-place layer comes first?), and a script "
                "cannot be handed copies; script one that begins with rows.clone()"
            )
        if not self.writes_rows:
            self.writes_rows = True
            self.thread.private.module.register_forward_pre_hook(_on_copies, with_kwargs=True)

    def _begin(self, scratch: frozenset[tuple[int, str]]) -> None:
        if any(map(is_lazy, self.module.parameters())):
            raise NotApplicableError(
                f"{type(self.module).__name__} has parameters that get their shape from the first rows they "
                "see; call the model on a few rows before a task is made of it"
            )
        self.thread = _Thread(self)
        """What this thread has of the model: `thread.private`, its copy."""
        self.guard = Guard(self.module, not self.shared, scratch)
        """Notices when the model changes."""

    def copied(self) -> nn.Module:
        """An independent copy of the caller's model as it is now; a clear refusal where none can be made."""
        made = _shell(self.module) if self.shared else self._copy()
        if self.writes_rows:
            made.register_forward_pre_hook(_on_copies, with_kwargs=True)
        return made

    def _copy(self) -> nn.Module:
        try:
            with torch.inference_mode(False), torch.no_grad():
                made = (
                    self.copier(self.module)
                    if self.copier
                    else copy.deepcopy(self.module, _computed(self.module))
                )
        except Exception as error:
            raise NotApplicableError(
                f"{type(self.module).__name__} cannot be copied ({error}), and a model is only ever run on a "
                "private copy; give the task copy=..., a function that takes the model and makes another one"
            ) from error
        if made is self.module or _memory(made) & _memory(self.module):
            raise NotApplicableError(
                f"the copy of {type(self.module).__name__} shares parameters or buffers with the original; "
                "copy=... has to make one with tensors of its own"
            )
        theirs, ours = ({n: p.shape for n, p in m.named_parameters()} for m in (self.module, made))
        if theirs != ours:
            odd = sorted(n for n in theirs.keys() | ours.keys() if theirs.get(n) != ours.get(n))
            raise NotApplicableError(
                f"the copy of {type(self.module).__name__} has other parameters than the original "
                f"({odd[0]}); copy=... has to make one whose parameters have the same names and shapes"
            )
        return made

    def watch(self) -> None:
        """Refuse if the model has changed, unless this thread has looked and is still at work."""
        own = self.thread.private
        if not own.sessions and not own.questions:
            self.guard.check()

    def renewed(self) -> Source:
        """The same model as it is now."""
        return Source(self.module, self.copier, self.shared, self.guard.scratch, self.writes_rows)

    def __getstate__(self) -> dict[str, Any]:
        held = {name: vars(self)[name] for name in ("module", "copier", "shared", "writes_rows")}
        return {**held, "scratch": self.guard.scratch}

    def __setstate__(self, state: dict[str, Any]) -> None:
        scratch = state.pop("scratch")
        vars(self).update(state)
        self._begin(scratch)


class _Thread(threading.local):
    """What one thread has of a model: its own copy, made when it is first asked for."""

    private: Private

    def __init__(self, source: Source) -> None:
        self._source = source

    def __getattr__(self, name: str) -> Any:
        if name != "private":
            raise AttributeError(name)
        self.private = Private(self._source)
        return self.private


def _on_copies(
    _module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    def copied(value: Any) -> Any:
        return value.clone() if isinstance(value, Tensor) else value

    return tuple(map(copied, given)), {name: copied(value) for name, value in named.items()}


def _shell(model: nn.Module) -> nn.Module:
    """Another module around the same function or estimator, with hooks of its own."""
    made = copy.copy(model)
    made.__dict__ = {n: v.copy() if isinstance(v, dict) else v for n, v in model.__dict__.items()}
    return made


def _memory(model: nn.Module) -> set[int]:
    """Where the numbers of a model lie."""
    tensors = [t for t in (*model.parameters(), *model.buffers()) if t.layout == torch.strided]
    return {t.untyped_storage().data_ptr() for t in tensors if t.numel() and t.device.type != "meta"}


def _computed(model: nn.Module) -> dict[int, Any]:
    """Tensors that a forward pass left behind as attributes: deepcopy refuses those with a history."""
    return {
        id(value): value.detach().clone()
        for module in modules(model)
        for value in module.__dict__.values()
        if isinstance(value, Tensor) and value.grad_fn is not None
    }
