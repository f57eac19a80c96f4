"""The only place that runs a model: chunks, device, precision, eval mode, and the count of every row."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from veridical.errors import InputError, ModelError, ShapeError
from veridical.model.cost import Meter
from veridical.model.sessions import Held, Session
from veridical.settings import check_settings

log = logging.getLogger("veridical")

Side = tuple[Tensor, ...] | dict[str, Tensor]
Output = Callable[[Any], Tensor]

MIN_ROWS = 8


def most_rows(place: torch.device) -> int:
    """Rows a chunk beyond which nothing is gained; a GPU needs more to hide what starting its work costs."""
    return 16384 if place.type == "cuda" else 4096


def memory_budget(place: torch.device) -> int:
    """MiB that the activations of one chunk may take, unless the plan says otherwise."""
    return 4096 if place.type == "cuda" else 64


@lru_cache(maxsize=1)
def _keep_memory() -> None:
    """Have the C library keep the memory that tensors give back, instead of handing it to the system.

    glibc keeps blocks up to the size of the largest it has seen freed, 32 MiB at most. Until then much is got
    from the system anew, page by page: 8,000 pages in a Fast-GEF of 16 digits, 250 with this, and 4 to 15% of
    its time. Elsewhere this does nothing: memory that is never touched is not even taken.
    """
    torch.empty(2**25 - 2**12, dtype=torch.uint8)


@dataclass(frozen=True)
class Plan:
    """How a model is run. Part of the settings: the same plan on the same machine gives the same bits.

    On a GPU that holds of answers; cuDNN's gradients of convolutions differ in their last bits from one time
    to the next, unless `torch.backends.cudnn.deterministic` is set, which takes up to a sixth longer.
    `rows` a chunk is a multiple of 8; None lets one measured forward choose the power of two whose
    activations fit in `budget_mib` (by default 64 on a CPU, 4096 on a GPU). It never follows free memory.
    """

    rows: int | None = None
    budget_mib: int | None = None
    tf32: bool = False
    autocast: str | None = None
    channels_last: bool = False
    threads: int | None = None

    def __post_init__(self) -> None:
        check_settings(self)
        if self.rows is not None and (self.rows < 1 or self.rows % MIN_ROWS):
            raise InputError(f"a plan has a multiple of {MIN_ROWS} rows a chunk, got {self.rows}")
        if self.autocast not in (None, "bfloat16", "float16"):
            raise InputError(f"autocast is None, 'bfloat16' or 'float16', got {self.autocast!r}")

    def to_json(self) -> dict[str, Any]:
        """The plan as plain data, for the provenance."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


class _CountBackward(torch.autograd.Function):
    """Identity whose backward pass counts its rows."""

    @staticmethod
    def forward(ctx: Any, outputs: Tensor, meter: Meter) -> Tensor:
        ctx.meter = meter
        return outputs.view_as(outputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        ctx.meter.backward += len(grad)
        return grad, None


class CountedModel(nn.Module):
    """The user's model as explainers see it: rows in, (rows, outputs) out, each row counted.

    The user's module is registered as a child, so that hook-based methods find its layers.
    """

    _output: Output
    _meter: Meter

    def __init__(self, module: nn.Module, output: Output, meter: Meter) -> None:
        super().__init__()
        self.module = module
        # torch looks for parameters among attributes, which costs more than all the rest of this
        self.__dict__.update(_output=output, _meter=meter)

    def forward(self, x: Tensor, *side: Any, **named: Any) -> Tensor:
        outputs = self._output(self.module(x, *side, **named))
        rows = x.shape[0]
        if not isinstance(outputs, Tensor):
            raise ModelError(
                f"output=... gave a {type(outputs).__name__}, expected a tensor ({rows}, outputs)"
            )
        if outputs.dim() != 2 or outputs.shape[0] != rows:
            raise ShapeError(
                f"the model answered shape {tuple(outputs.shape)} to {rows} rows of {tuple(x.shape[1:])}; "
                f"expected ({rows}, outputs). Pass output=... to turn its answer into that"
            )
        self._meter.forward += rows
        if outputs.grad_fn is not None:
            outputs.register_hook(self._meter.count_backward)
        elif outputs.requires_grad:
            # a model that answers with its very input: a hook would stay on the caller's tensor
            counted: Tensor = _CountBackward.apply(outputs, self._meter)  # type: ignore[no-untyped-call]
            return counted
        return outputs


def plain_output(answer: Any) -> Tensor:
    """Find the (rows, outputs) tensor in what a model answers: a tensor, `.logits`, a dict or a tuple."""
    if isinstance(answer, Tensor):
        return answer[:, None] if answer.dim() == 1 else answer
    if hasattr(answer, "logits"):
        answer = answer.logits
    elif isinstance(answer, Mapping) and "logits" in answer:
        answer = answer["logits"]
    elif isinstance(answer, tuple | list) and answer:
        answer = answer[0]
    if not isinstance(answer, Tensor):
        raise ModelError(
            f"the model answered a {type(answer).__name__}; expected a tensor, a tuple that begins with one, "
            "or an object with .logits. Pass output=... to turn its answer into a (rows, outputs) tensor"
        )
    return answer[:, None] if answer.dim() == 1 else answer


@dataclass(frozen=True, eq=False)
class Predictor:
    """Runs one model in fixed chunks under one plan."""

    model: nn.Module
    output: Output
    device: torch.device
    plan: Plan
    differentiable: bool = True
    meter: Meter = field(default_factory=Meter)
    _open: dict[int, Held] = field(default_factory=dict)
    """What the sessions of each thread hold, here and in the predictors made from this one."""
    view: CountedModel = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "view", CountedModel(self.model, self.output, self.meter))
        if self.device.type == "cpu":
            _keep_memory()

    @property
    def rows(self) -> int:
        """Rows a chunk."""
        return self.plan.rows or MIN_ROWS

    def with_model(self, model: nn.Module, output: Output | None = None) -> Predictor:
        """Another model (a noisy view of this one, say) on the same plan and the same meter."""
        return Predictor(
            model,
            output or self.output,
            self.device,
            self.plan,
            self.differentiable,
            self.meter,
            self._open,
        )

    def session(self, grad: bool | None = False) -> Session:
        """Eval mode with every flag restored, the plan's precision and threads, gradients only if asked.

        With `grad=None` gradients stay as they are: for a session around many others, be they of this
        predictor or of those made from it, which find all else in place.
        """
        return Session(self, grad)

    def outputs(self, x: Tensor, side: Side = ()) -> Tensor:
        """All outputs (rows, C) for rows of any number, chunk by chunk, without gradients."""
        with self.session():
            outputs = self.chunk(x, side)
        check_finite(outputs)
        return outputs

    def chunk(self, x: Tensor, side: Side = (), count: int | None = None) -> Tensor:
        """Outputs of one chunk, padded to a multiple of 8 rows, halved and retried when memory runs out.

        More rows than the plan allows are asked in several chunks. Rows of x beyond `count` are padding:
        asked, but neither counted nor given back. Must run inside `session`. Outputs are not checked here: a
        check would wait for the device.
        """
        rows = x.shape[0]
        count = rows if count is None else count
        if count > self.rows:
            pieces = [slice(at, min(count, at + self.rows)) for at in range(0, count, self.rows)]
            return torch.cat([self.chunk(x[piece], take_side(side, piece)) for piece in pieces])
        if rows % MIN_ROWS:
            x = x[_padding(count, x.device)]
            rows = x.shape[0]
        if side and rows != count:
            side = take_side(side, _padding(count, x.device))
        try:
            outputs = self._call(x, side)
            self.meter.forward -= rows - count
            return outputs if rows == count else outputs[:count]
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error) or count <= MIN_ROWS:
                raise
        half = -(-count // 2 // MIN_ROWS) * MIN_ROWS
        self.meter.halvings += 1
        log.warning("out of memory on %d rows; trying %d at a time", count, half)
        if x.device.type == "cuda":
            torch.cuda.empty_cache()
        pieces = [slice(0, half), slice(half, count)]
        return torch.cat([self.chunk(x[piece], take_side(side, piece)) for piece in pieces])

    def _call(self, x: Tensor, side: Side) -> Tensor:
        if self.plan.channels_last and x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        return call(self.view, x, side)


def call(model: nn.Module, x: Tensor, side: Side = ()) -> Tensor:
    """Call a model with side inputs by position or by name."""
    answer: Tensor = model(x, **side) if isinstance(side, dict) else model(x, *side)
    return answer


def check_finite(outputs: Tensor) -> None:
    """Refuse NaN and infinite answers: no score could be made of them."""
    if not outputs.numel() or math.isfinite(float(outputs.abs().amax())):
        return
    bad = ~torch.isfinite(outputs).reshape(len(outputs), -1).all(-1)
    rows = bad.nonzero().reshape(-1)[:5].tolist()
    raise ModelError(f"the model answered NaN or infinity in {int(bad.sum())} rows (first: {rows})")


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


def _padding(count: int, device: torch.device) -> Tensor:
    """Row numbers 0..count-1, the last one repeated up to a multiple of 8."""
    return torch.arange(count + -count % MIN_ROWS, device=device).clamp(max=count - 1)


def out_of_memory(error: BaseException) -> bool:
    """Whether this is CUDA's out-of-memory error or an allocator's."""
    text = str(error).lower()
    return isinstance(error, torch.cuda.OutOfMemoryError | MemoryError) or any(
        sign in text for sign in ("out of memory", "can't allocate memory", "not enough memory")
    )


def measured_rows(module: nn.Module, run: Callable[[], Any], row: Tensor, budget_mib: int) -> int:
    """Choose rows a chunk: the power of two whose activations fit the budget, from one forward pass.

    Activations are the outputs of the leaf modules for one row; what a model computes between its modules
    is taken as another copy of its input.
    """
    seen = [2 * row.numel() * row.element_size()]

    def add(_module: nn.Module, _inputs: Any, output: Any) -> None:
        for value in output if isinstance(output, tuple | list) else (output,):
            # padded text may travel between torch's own layers as a nested tensor, which has no sizes
            if isinstance(value, Tensor) and not value.is_nested:
                seen.append(value.numel() * value.element_size() // max(1, len(value)) if value.dim() else 0)

    leaves = [m for m in module.modules() if not list(m.children())]
    hooks = [
        leaf.register_forward_hook(add) for leaf in leaves if not isinstance(leaf, torch.jit.ScriptModule)
    ]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    fitting = max(1, budget_mib * 2**20 // max(1, sum(seen)))
    return max(MIN_ROWS, min(most_rows(row.device), 1 << (fitting.bit_length() - 1)))
