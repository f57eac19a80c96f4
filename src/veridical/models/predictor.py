"""The only place that runs a model: sessions, chunks, device, precision, and the count of every row."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from veridical.errors import ModelError, ShapeError, VeridicalError
from veridical.functional.responses import Rounding
from veridical.models.cost import Meter, Tally
from veridical.models.plan import MIN_ROWS, Plan, float32_products, uses_tf32
from veridical.models.private_copy import Snapshot, WorkingCopy, explained_rows
from veridical.models.weights import Weights

_NOTHING = nullcontext()


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
    """The plan's autocast; where it has none, that of a caller is kept out."""
    if wanted is not None:
        return torch.autocast(kind, dtype=getattr(torch, wanted))
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else _NOTHING


log = logging.getLogger("veridical")

Side = tuple[Tensor, ...] | dict[str, Tensor]
Output = Callable[[Any], Tensor]
Wrap = Callable[[nn.Module], nn.Module]
After = Callable[[Tensor, Tensor], Tensor]


def _count_backward(tally: Tally, gradient: Tensor) -> None:
    tally.backward += gradient.shape[0]


class RaisedError(ModelError):
    """What a model raised on some rows, in a sentence; the error itself is its cause."""

    @classmethod
    def of(cls, raised: Exception, x: Tensor) -> RaisedError:
        """The sentence about an error on rows x."""
        fewer = ". If it takes fewer at once, say so: plan=vd.Plan(rows=4), or 2, or 1"
        return cls(
            f"the model ran on one row and raised {type(raised).__name__} on {len(x)} rows of shape "
            f"{tuple(x.shape[1:])}, some of which may be masked: {raised}{fewer if len(x) > 1 else ''}"
        )


class CountedModel(nn.Module):
    """A private copy to evaluate: rows in, (rows, outputs) out, each row counted, its weights in place."""

    def __init__(self, module: nn.Module, predictor: Predictor, own: WorkingCopy) -> None:
        super().__init__()
        self.module = module
        # torch looks for parameters among attributes, which costs more than all the rest of this
        self.__dict__.update(
            _output=predictor.output,
            _after=predictor.after,
            _weights=predictor.weights,
            _meter=predictor.meter,
            _own=own,
        )

    def forward(self, x: Tensor, /, *side: Any, **named: Any) -> Tensor:
        own, weights = self.__dict__["_own"], self.__dict__["_weights"]
        if own.loaded is not weights:
            own.load(weights)
        try:
            returned = self.module(x, *side, **named)
        except Exception as error:
            if isinstance(error, VeridicalError) or out_of_memory(error):
                raise
            raise RaisedError.of(error, x) from error
        return self.counted_outputs(x, returned)

    def counted_outputs(self, x: Tensor, returned: Any) -> Tensor:
        """Turn what the model returned for x into (rows, outputs), and count the rows."""
        outputs: Tensor = self.__dict__["_output"](returned)
        rows = x.shape[0]
        if not isinstance(outputs, Tensor):
            raise ModelError(
                f"output=... gave a {type(outputs).__name__}, expected a tensor ({rows}, outputs)"
            )
        if outputs.dim() != 2 or outputs.shape[0] != rows or outputs.shape[1] == 0:
            raise ShapeError(
                f"the model returned shape {tuple(outputs.shape)} for {rows} rows of {tuple(x.shape[1:])}; "
                f"expected ({rows}, outputs). Pass output=... to turn what it returns into that"
            )
        after = self.__dict__["_after"]
        if after is not None:
            outputs = after(x, outputs)
        # of the thread that evaluates: gradients on a GPU come back in another one
        tally: Tally = self.__dict__["_meter"].here
        tally.forward += rows
        if isinstance(self.module, torch.jit.ScriptModule):
            tally.rows += rows
        if outputs.requires_grad:
            # a view: of a model that returns its very input, a hook would stay on the caller's tensor
            outputs = outputs if outputs.grad_fn is not None else outputs.view_as(outputs)
            outputs.register_hook(partial(_count_backward, tally))
        return outputs


def plain_output(returned: Any) -> Tensor:
    """Find the (rows, outputs) tensor in what a model returns: a tensor, `.logits`, a dict or a tuple."""
    if isinstance(returned, Tensor):
        return returned[:, None] if returned.dim() == 1 else returned
    if hasattr(returned, "logits"):
        returned = returned.logits
    elif isinstance(returned, Mapping) and "logits" in returned:
        returned = returned["logits"]
    elif isinstance(returned, tuple | list) and returned:
        returned = returned[0]
    if not isinstance(returned, Tensor):
        raise ModelError(
            f"the model returned a {type(returned).__name__}; expected a tensor, a tuple that begins with "
            "one, or an object with .logits. Pass output=... to turn it into a (rows, outputs) tensor"
        )
    return returned[:, None] if returned.dim() == 1 else returned


@dataclass(frozen=True, eq=False)
class Predictor:
    """Runs one model, under one set of weights, in fixed chunks under one plan."""

    source: Snapshot
    """The caller's model as it was; the caller's own module is never run."""
    output: Output
    """Turns what the model returns into (rows, outputs)."""
    device: torch.device
    plan: Plan
    differentiable: bool = True
    weights: Weights | None = None
    """What is written over the caller's weights."""
    wraps: tuple[Wrap, ...] = ()
    """What is put around the copy, innermost first: each takes a module and gives another."""
    after: After | None = None
    """What is done to the outputs (rows, C) of rows x at last: `after(x, outputs)`."""
    _here: threading.local = field(default_factory=threading.local, init=False, repr=False)
    """Each thread's view, which goes with the thread."""

    @property
    def rows(self) -> int:
        """Rows per chunk."""
        return self.plan.rows or MIN_ROWS

    @property
    def padded_to(self) -> int:
        """Chunks are padded to a multiple of it; 1 where rows are expensive and none is padded."""
        return MIN_ROWS if self.rows % MIN_ROWS == 0 else 1

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_here"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _here=threading.local())

    @property
    def meter(self) -> Meter:
        """Counts the rows of this model and of everything made from it."""
        return self.source.meter

    @property
    def rounding(self) -> Rounding | None:
        """The precision in which outputs are computed, where their own dtype does not say it."""
        if self.plan.autocast is not None:
            lower: torch.dtype = getattr(torch, self.plan.autocast)
            return lower
        return "tf32" if self.device.type == "cuda" and uses_tf32(self.unwrapped, self.plan) else None

    @property
    def model(self) -> nn.Module:
        """This thread's private copy with these weights written into it; never the caller's module."""
        view = self.view
        self.source.working.load(self.weights)
        return view.module

    @property
    def unwrapped(self) -> nn.Module:
        """The private copy with these weights, nothing around it: names are the caller's."""
        own = self.source.working
        own.load(self.weights)
        return own.module

    @property
    def view(self) -> CountedModel:
        """The private copy as it is evaluated: each row counted."""
        view: CountedModel | None = getattr(self._here, "view", None)
        if view is None:
            view = self._here.view = self._around(self.source.working)
        return view

    def _around(self, own: WorkingCopy) -> CountedModel:
        module = own.module
        for wrap in self.wraps:
            module = wrap(module)
        return CountedModel(module, self, own)

    def copied(self) -> nn.Module:
        """A real module of its own under these weights, for whoever wants to write to one."""
        own = WorkingCopy(self.source)
        own.load(self.weights)
        return self._around(own).module

    @contextmanager
    def exposed(self) -> Iterator[nn.Module]:
        """A copy for code that is not ours: a real module whose calls are counted, thrown away afterwards.

        It returns (rows, outputs).
        """
        view, module = self.view, self.copied()

        def counted(
            _module: nn.Module, given: tuple[Any, ...], named: dict[str, Any], returned: Any
        ) -> Tensor:
            return view.counted_outputs(explained_rows(given, named), returned)

        handle = module.register_forward_hook(counted, with_kwargs=True)
        try:
            yield module
        finally:
            handle.remove()

    def with_weights(self, weights: Weights) -> Predictor:
        """The same model under other weights, on the same plan and the same meter."""
        return replace(self, weights=weights)

    def wrapped(self, wrap: Wrap, output: Output | None = None) -> Predictor:
        """The same model with something around it: `wrap(module)` is made for every thread's copy."""
        return replace(self, wraps=(*self.wraps, wrap), output=output or self.output)

    def with_model(self, model: nn.Module, output: Output | None = None) -> Predictor:
        """This very module, made of this thread's copy, in the place of the copy; for use in this thread."""
        return replace(self, wraps=(lambda _: model,), output=output or self.output)

    @contextmanager
    def session(self, grad: bool | None = False) -> Iterator[CountedModel]:
        """The working copy made ready, under the plan's precision and threads; gradients only if asked.

        The first session of a thread refuses where the caller's model has changed. With `grad=None`
        gradients stay as they are: for a session around many others, of this predictor or of those made from
        it, which find all else in place.
        """
        own = self.source.working
        with ExitStack() as opened:
            if not own.sessions:
                self.source.check()
                opened.enter_context(_as_planned(self.plan, self.device.type))
                own.restore_buffers()
            own.load(self.weights)
            if grad is not None:
                opened.enter_context(torch.set_grad_enabled(grad))
            own.sessions += 1
            try:
                yield self.view
            finally:
                own.sessions -= 1

    def outputs(self, x: Tensor, side: Side = ()) -> Tensor:
        """All outputs (rows, C) for rows of any number, chunk by chunk, without gradients."""
        with self.session():
            outputs = self.chunk(x, side)
            check_finite(outputs)
        return outputs

    def chunk(self, x: Tensor, side: Side = (), count: int | None = None) -> Tensor:
        """Outputs of one chunk, padded as the plan says, halved and retried when memory runs out.

        More rows than the plan allows are evaluated in several chunks. Rows of x beyond `count` are padding:
        evaluated, but neither counted nor given back. Must run inside `session`. Outputs are not checked, as
        that would wait for the device.
        """
        rows = x.shape[0]
        count = rows if count is None else count
        if count > self.rows:
            pieces = [slice(at, min(count, at + self.rows)) for at in range(0, count, self.rows)]
            return torch.cat([self.chunk(x[piece], take_side(side, piece)) for piece in pieces])
        least = self.padded_to
        if rows % least:
            x = x[self.padding(count)]
            rows = x.shape[0]
        if side and rows != count:
            side = take_side(side, self.padding(count))
        try:
            outputs = self._call(x, side)
            self.meter.here.forward -= rows - count
            # what lies in the model's own memory, perhaps in the very weights, would change with it
            return outputs[:count].clone()
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error) or count <= least:
                raise
        half = -(-count // 2 // least) * least
        self.meter.here.halvings += 1
        log.warning("out of memory on %d rows; trying %d at a time", count, half)
        free_memory(x.device)
        pieces = [slice(0, half), slice(half, count)]
        return torch.cat([self.chunk(x[piece], take_side(side, piece)) for piece in pieces])

    def padding(self, count: int) -> Tensor:
        """Row numbers 0..count-1, the last one repeated until a chunk of them is full enough."""
        return torch.arange(count + -count % self.padded_to, device=self.device).clamp(max=count - 1)

    def _call(self, x: Tensor, side: Side) -> Tensor:
        if self.plan.channels_last and x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        return call(self.view, x, side)


def call(model: nn.Module, x: Tensor, side: Side = ()) -> Tensor:
    """Call a model with side inputs by position or by name."""
    returned: Tensor = model(x, **side) if isinstance(side, dict) else model(x, *side)
    return returned


def check_finite(outputs: Tensor) -> None:
    """Refuse NaN and infinite outputs: no score could be made of them."""
    if not outputs.numel() or math.isfinite(float(outputs.detach().abs().amax())):
        return
    bad = ~torch.isfinite(outputs).reshape(len(outputs), -1).all(-1)
    rows = bad.nonzero().reshape(-1)[:5].tolist()
    raise ModelError(f"the outputs contain NaN or infinity in {int(bad.sum())} rows (first: {rows})")


def take_side(side: Side, index: Tensor | slice) -> Side:
    """The side inputs of some of the rows."""
    if isinstance(side, dict):
        return {name: value[index] for name, value in side.items()}
    return tuple(value[index] for value in side)


def repeat_side(side: Side, times: int) -> Side:
    """Repeat each row of the side inputs, as masked variants of one sample share them."""
    if isinstance(side, dict):
        return {name: value.repeat_interleave(times, 0) for name, value in side.items()}
    return tuple(value.repeat_interleave(times, 0) for value in side)


def out_of_memory(error: BaseException) -> bool:
    """Whether this is CUDA's out-of-memory error or an allocator's."""
    text = str(error).lower()
    return isinstance(error, torch.cuda.OutOfMemoryError | MemoryError) or any(
        sign in text for sign in ("out of memory", "can't allocate memory", "not enough memory")
    )


def free_memory(device: torch.device) -> None:
    """Give back what torch holds of a GPU's memory and does not use."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
