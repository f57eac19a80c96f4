"""The task's own copy of the caller's model: a snapshot, and the copies that are written to.

Nothing here ever writes to the caller's module: not its parameters, buffers, hooks or flags. A task owns a
clean deep copy in eval mode, the snapshot, which is never written to either. Rows are run on a second copy
that belongs to one thread, into which the weights of the perturbed model in question are written; code of
others gets a copy of its own, which is thrown away afterwards.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from veridical.errors import ModelChangedError, NotApplicableError
from veridical.models.cost import Meter

if TYPE_CHECKING:
    from veridical.models.weights import Weights

Copier = Callable[[Any], Any]
"""Makes an independent copy of a model."""
Wrapper = Callable[[nn.Module], nn.Module]
"""Puts another module around one."""
UNKNOWN: Any = object()
"""In the place of weights: what is in the copy is not known."""


class Snapshot:
    """The caller's model as it was when the task was made.

    A change of the caller's parameters or buffers that identity and torch's version counter show is refused
    with `ModelChangedError`; one they do not show is harmless, since the snapshot is evaluated. Functions and
    estimators (`shared`) are run as they are given here.
    """

    def __init__(
        self,
        model: nn.Module,
        copier: Copier | None = None,
        shared: bool = False,
        original: Any = None,
        meter: Meter | None = None,
    ) -> None:
        if any(map(is_lazy, model.parameters())):
            raise NotApplicableError(
                f"{type(model).__name__} has parameters that get their shape from the first rows they "
                "see; call the model on a few rows before a task is made of it"
            )
        self.original: Any = model if original is None else original
        """What the caller gave: a module, a function or an estimator."""
        self.meter = Meter() if meter is None else meter
        """Counts rows."""
        self.copier = copier
        self.shared = shared
        """Whether it is no torch module (a function, an estimator), and has no weights to write to."""
        self.writes_rows = False
        """Whether it writes into the rows it is given, so that it gets copies of them."""
        self.module: nn.Module = model if shared else private_copy(model, copier).eval()
        """The snapshot, which is never written to."""
        self._watched: nn.Module | None = None if shared else model
        self._known = {} if shared else _tensors(model)
        self._wrap: tuple[Wrapper, Copier | None] | None = None
        self._here = threading.local()

    @property
    def working(self) -> WorkingCopy:
        """This thread's copy, which its rows are run on."""
        found: WorkingCopy | None = getattr(self._here, "copy", None)
        if found is None:
            found = self._here.copy = WorkingCopy(self)
        return found

    def copied(self) -> nn.Module:
        """An independent copy of the snapshot in eval mode, for whoever wants to write to one.

        Rows that enter it are counted; those of a script, which takes no hooks, by whoever runs it.
        """
        made = _shell(self.module) if self.shared else private_copy(self.module, self.copier).eval()
        if self.writes_rows:
            made.register_forward_pre_hook(_on_copies, with_kwargs=True)
        if not isinstance(made, torch.jit.ScriptModule):
            made.register_forward_pre_hook(_Count(self.meter), with_kwargs=True)
        return made

    def check(self) -> None:
        """Refuse if the caller's parameters or buffers are no longer those that were copied."""
        if self._watched is None:
            return
        now = _tensors(self._watched)
        for name, (known, version) in self._known.items():
            found = now.get(name)
            if found is None or found[0] is not known or found[1] != version:
                raise ModelChangedError(_changed(name))
        # a buffer may be made by a first forward pass; another parameter makes another model
        more = [n for n in now.keys() - self._known.keys() if isinstance(now[n][0], nn.Parameter)]
        if more:
            raise ModelChangedError(_changed(sorted(more)[0]))

    def spare_rows(self) -> None:
        """From now on the model gets copies of its rows: it writes into what it is given."""
        if isinstance(self.module, torch.jit.ScriptModule):
            raise NotApplicableError(
                "the model writes into the rows it is given (an in-place layer comes first?), and a script "
                "cannot be handed copies; script one that begins with rows.clone()"
            )
        if not self.writes_rows:
            self.writes_rows = True
            self.working.module.register_forward_pre_hook(_on_copies, with_kwargs=True)

    def renewed(self, module: nn.Module | None = None) -> Snapshot:
        """A snapshot of the caller's model as it is now; `module` is what runs a function or estimator."""
        model = self._watched if module is None else module
        new = Snapshot(
            self.module if model is None else model, self.copier, self.shared, self.original, self.meter
        )
        new.writes_rows = self.writes_rows
        return new if self._wrap is None else new.wrapped(*self._wrap)

    def wrapped(self, wrap: Wrapper, copier: Copier | None = None) -> Snapshot:
        """The snapshot inside another module, still refusing when the caller's own model changes."""
        new, module = object.__new__(Snapshot), wrap(self.module).eval()
        more = {"module": module, "original": module, "copier": copier, "_wrap": (wrap, copier)}
        new.__dict__.update(vars(self), **more, _here=threading.local())
        return new

    def to(self, device: torch.device) -> Snapshot:
        """A copy of the snapshot on another device; the caller's model stays where it is."""
        self.check()
        moved = private_copy(self.module, self.copier).to(device) if not self.shared else _shell(self.module)
        new = Snapshot(moved, self.copier, self.shared, self.original if self.shared else None, self.meter)
        new.writes_rows = self.writes_rows
        return new

    def __getstate__(self) -> dict[str, Any]:
        return {name: vars(self)[name] for name in ("module", "copier", "shared", "writes_rows", "meter")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["module"], state["copier"], state["shared"], meter=state["meter"])  # type: ignore[misc]
        self.writes_rows = state["writes_rows"]


class WorkingCopy:
    """A copy of a snapshot, and which weights are written into it."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.module = snapshot.copied()
        self.sessions = 0
        """How many sessions of its thread are open."""
        self.loaded: Weights | None = None
        """The weights that are in it: None the snapshot's own, UNKNOWN perhaps others."""
        self._own: list[Tensor] = []
        self._clean: list[Tensor] = []
        self._buffers: list[tuple[Any, str, Tensor, Tensor]] = []
        if not snapshot.shared:
            # by name: a copy that somebody else made may list its layers in another order
            clean, own = dict(snapshot.module.named_parameters()), self.parameters
            self._own, self._clean = [own[name] for name in clean], list(clean.values())
            self._buffers = list(_buffers(snapshot.module, self.module))
            _ready_for_gradients(self.module)
        self._versions = self._buffer_versions()

    @property
    def parameters(self) -> dict[str, Tensor]:
        """Its own parameters by name."""
        return dict(self.module.named_parameters())

    def load(self, weights: Weights | None) -> None:
        """Write these weights into the copy, unless they are there; None are the snapshot's own."""
        if self.loaded is weights:
            return
        self.loaded = UNKNOWN
        with torch.no_grad():
            if self._own:
                torch._foreach_copy_(self._own, self._clean)
            if weights is not None:
                weights.write(self.parameters)
        self.loaded = weights

    def restore_buffers(self) -> None:
        """Put back what a forward pass wrote into buffers: outputs must not depend on earlier ones."""
        if self._buffer_versions() == self._versions:
            return
        with torch.no_grad():
            for table, name, own, clean in self._buffers:
                own.copy_(clean)
                table[name] = own
        self._versions = self._buffer_versions()

    def _buffer_versions(self) -> list[tuple[int, int]]:
        """Which tensor each buffer is now, and how often it was written to."""
        now = [table[name] if name in table else None for table, name, *_ in self._buffers]  # noqa: SIM401
        return [(id(tensor), -1 if tensor is None else version(tensor)) for tensor in now]


def private_copy(model: Any, copier: Copier | None = None) -> Any:
    """An independent copy of a module or estimator, or a clear refusal where none can be made."""
    try:
        with torch.inference_mode(False), torch.no_grad():
            made = copier(model) if copier else copy.deepcopy(model, _computed(model))
    except Exception as error:
        raise NotApplicableError(
            f"{type(model).__name__} cannot be copied ({error}), and a model is only ever run on a "
            "private copy; give the task copy=..., a function that takes the model and makes another one"
        ) from error
    if isinstance(model, nn.Module):
        if not isinstance(made, torch.jit.ScriptModule):
            for number, hook in list(made._forward_pre_hooks.items()):
                if isinstance(hook, _Count):
                    del made._forward_pre_hooks[number]
        _check_copy(model, made)
        if copier is not None:
            _fill(made, model)
    return made


def version(tensor: Tensor) -> int:
    """How often a tensor was written to; torch does not count for tensors made in inference mode."""
    return -1 if tensor.is_inference() else tensor._version


def trains(module: nn.Module) -> bool:
    """Whether a module is in training mode; a frozen script has none."""
    return bool(getattr(module, "training", False))


def _tensors(model: nn.Module) -> dict[str, tuple[Tensor, int]]:
    """Every parameter and buffer by its name, with how often it was written to."""
    found: dict[str, tuple[Tensor, int]] = {}
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        for table in (module._parameters, module._buffers):
            for name, value in table.items():
                if value is not None:
                    found[prefix + name] = value, version(value)
    return found


def _changed(name: str) -> str:
    return (
        f"the model has changed since this task was made ('{name}' is not what it was), so what the task "
        "knows no longer holds; make the task again, or go on with task.refreshed()"
    )


def _check_copy(model: nn.Module, made: Any) -> None:
    if made is model or _memory(made) & _memory(model):
        raise NotApplicableError(
            f"the copy of {type(model).__name__} shares parameters or buffers with the original; "
            "copy=... has to make one with tensors of its own"
        )
    theirs, ours = ({n: p.shape for n, p in m.named_parameters()} for m in (model, made))
    if theirs != ours:
        odd = sorted(n for n in theirs.keys() | ours.keys() if theirs.get(n) != ours.get(n))
        raise NotApplicableError(
            f"the copy of {type(model).__name__} has other parameters than the original "
            f"({odd[0]}); copy=... has to make one whose parameters have the same names and shapes"
        )


def _fill(made: nn.Module, model: nn.Module) -> None:
    """Write the original's numbers into a copy that somebody else made."""
    theirs, ours = (dict([*m.named_parameters(), *m.named_buffers()]) for m in (model, made))
    with torch.no_grad():
        for name in theirs.keys() & ours.keys():
            ours[name].copy_(theirs[name])


def _buffers(clean: nn.Module, copied: nn.Module) -> Iterator[tuple[Any, str, Tensor, Tensor]]:
    """Each buffer of a copy: the table it is in, its name, its tensor, and the snapshot's."""
    there = dict(copied.named_modules())
    for path, module in clean.named_modules():
        table = there[path]._buffers if path in there else {}
        for name, value in module._buffers.items():
            if value is not None and name in table and (own := table[name]) is not None:
                yield table, name, own, value


def _ready_for_gradients(model: nn.Module) -> None:
    """On a GPU recurrent layers train without dropout: else cuDNN gives no gradients."""
    for module in model.modules():
        if isinstance(module, nn.RNNBase) and any(p.is_cuda for p in module.parameters(recurse=False)):
            module.dropout = 0.0
            module.training = True
            module.flatten_parameters()


class _Count:
    """A hook that counts the rows that enter a model."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter

    def __call__(self, _module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        self.meter.here.rows += len(explained_rows(given, named))

    def __deepcopy__(self, memo: Any) -> _Count:
        return self


def explained_rows(given: tuple[Any, ...], named: dict[str, Any]) -> Tensor:
    """The explained rows among the arguments of a call."""
    rows: Tensor = given[0] if given else next(value for value in named.values() if isinstance(value, Tensor))
    return rows


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


def _computed(model: Any) -> dict[int, Any]:
    """Tensors that a forward pass left behind as attributes: deepcopy refuses those with a history."""
    return {
        id(value): value.detach().clone()
        for module in (model.modules() if isinstance(model, nn.Module) else ())
        for value in module.__dict__.values()
        if isinstance(value, Tensor) and value.grad_fn is not None
    }
