"""What kind of outputs a model has: one row is evaluated, and a one-logit head gets its two columns."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn

from veridical.errors import InputError, ShapeError, VeridicalError, warn
from veridical.models.cost import Cost
from veridical.models.plan import MIN_ROWS, Plan, memory_budget, most_rows
from veridical.models.predictor import (
    Output,
    Predictor,
    RaisedError,
    Side,
    call,
    check_finite,
    plain_output,
    take_side,
)
from veridical.models.private_copy import Snapshot, version

Head = Literal["multiclass", "binary", "multilabel", "regression", "generation"]
"""A generation has one output, a log-probability; a second column holds the share of the answer's tokens that
are predicted as the unperturbed model predicts them, which is all that agreement means of it."""
Response = Literal["logit", "probability"]
"""On which scale outputs are read."""
PROBABILITIES = "the outputs seem to be probabilities"
UNSTEADY = "the model gives a row other outputs when it is evaluated again, alone or beside another row"
"""The warning of a task, and the flag of its scores."""
ONE_ROW = "the model takes one row at a time"
_SUM = 1e-5
_APART = {2: 0.1, 4: 0.01, 8: 0.01}
"""How far two outputs for one row may lie apart, as a share of the largest, by the bytes of a number."""


def first_outputs(
    source: Snapshot, raw: Output, two: Tensor, side: Side, plan: Plan | None, head: str | None
) -> tuple[Head, int, Plan, float]:
    """Evaluate one row: its head, how many outputs it has, how many rows fit a chunk, how far outputs move.

    Then the first `two` rows together, as far as the plan takes two, and once more: a row should have the
    outputs it had before. A model that takes one row only is planned to get one at a time.
    """
    plan = plan or Plan()
    seen: list[Tensor] = []
    trial = Predictor(source, raw, two.device, plan)
    # a model may write into what it is given, so it never gets the caller's rows
    one, one_side = two[:1].clone(), take_side(side, slice(0, 1))
    written = version(one)
    module = source.working.module

    def evaluate() -> None:
        with trial.session() as view:
            seen.append(call(view, one, one_side))
            if version(one) != written:
                source.spare_rows()

    budget = plan.budget_mib or memory_budget(one.device)
    try:
        rows = measured_rows(module, evaluate, one, budget)
    except Exception as error:
        raised = _raised(error)
        if isinstance(raised, VeridicalError):
            raise
        hint = getattr(module, "hint", "") or _hint(module, one, raised)
        raise ShapeError(
            f"the model does not run on one row of shape {tuple(one.shape)} "
            f"({type(raised).__name__}: {raised}). {hint}"
        ) from raised
    check_finite(seen[0])
    kind = _head(seen[0].shape[1], head)
    if kind == "multiclass" and raw is plain_output:
        _warn_of_probabilities(seen[0])
    if plan.rows == 1:
        two, side = two[:1], one_side
    with trial.session() as view:
        try:
            seen.append(call(view, two.clone(), side))
        except Exception as error:
            raised = _raised(error)
            warn(f"{ONE_ROW} (on two it raises {type(raised).__name__}: {raised}); it is run as Plan(rows=1)")
            plan, two, side = replace(plan, rows=1), two[:1], one_side
        with suppress(Exception):  # what it raises now and then, it raises again where it is run
            seen.append(call(view, two.clone(), side))
    moves = _moves(seen)
    if moves:
        warn(
            f"{UNSTEADY} (they move by {moves:.0%} of their size): chance, such as dropout that is always "
            "on, or the other rows of a batch decide with it, and so they do in every score"
        )
    source.meter.reset(Cost())  # what a task wants to know is nobody's cost
    outputs = {"binary": 2, "generation": 1}.get(kind, seen[0].shape[1])
    return kind, outputs, plan if plan.rows is not None else replace(plan, rows=rows), moves


def _raised(error: Exception) -> Exception:
    cause = error.__cause__ if isinstance(error, RaisedError) else None
    return cause if isinstance(cause, Exception) else error


def _hint(module: nn.Module, one: Tensor, error: Exception) -> str:
    """What may be wrong where a model does not run on one row."""
    if isinstance(error, TypeError) and "positional argument" in str(error):
        return "A model takes one batch of rows; what else it needs per sample goes in side="
    layers = list(module.modules())
    channels = next((layer.in_channels for layer in layers if isinstance(layer, nn.Conv2d)), None)
    columns = next((layer.in_features for layer in layers if isinstance(layer, nn.Linear)), one.shape[-1])
    columns = getattr(getattr(module, "estimator", None), "n_features_in_", columns)
    hint = "The first axis of inputs must count samples: for a single one pass inputs[None]"
    if one.dim() == 4 and one.shape[-1] == channels != one.shape[1]:
        hint = f"The model takes {channels} channels, which come last here: pass inputs.permute(0, 3, 1, 2)"
    elif one.dim() == 2 and one.shape[1] != columns:
        hint = f"The model takes {columns} columns, inputs have {one.shape[1]}"
    if not one.is_floating_point():
        scaled = ", or inputs / 255 if it was trained on 0 to 1" if one.dtype == torch.uint8 else ""
        hint += f"; inputs are {one.dtype}: if the model wants numbers, pass inputs.float(){scaled}"
    return hint


def _head(count: int, head: str | None) -> Head:
    """The head that was named, or the one this number of outputs suggests."""
    if head is None:
        if count > 1:
            return "multiclass"
        warn(
            "the model has one output; it is read as the logit of the second of two classes. "
            "Say head='binary' to confirm, or head='regression'"
        )
        return "binary"
    if head not in get_args(Head):
        raise InputError(f"head is one of {', '.join(get_args(Head))}; got {head!r}")
    if head == "multiclass" and count < 2:
        raise InputError("a multiclass head needs at least two outputs, this model has one")
    if head == "generation" and count != 2:
        raise InputError(f"a generation has a response and a share of tokens kept; this model has {count}")
    if head == "binary" and count > 2:
        raise InputError(f"a binary head has one or two outputs, this model has {count}")
    return cast(Head, head)


def two_columns(raw: Output, head: str) -> Output:
    """Give a one-logit head its two columns (-z, z), so that column c is the logit of class c."""
    return _BinaryOutput(raw) if head == "binary" else raw


class _BinaryOutput:
    def __init__(self, raw: Output) -> None:
        self.raw = raw

    def __call__(self, returned: Any) -> Tensor:
        outputs = self.raw(returned)
        if outputs.shape[1] == 1:
            return torch.cat([-outputs, outputs], 1)
        margin = outputs[:, 1:] - outputs[:, :1]
        return torch.cat([-margin, margin], 1)


def measured_rows(module: nn.Module, run: Callable[[], Any], row: Tensor, budget_mib: int) -> int:
    """Choose rows per chunk: the power of two whose activations fit the budget, from one forward pass.

    Activations are the outputs of the leaf modules for one row; what a model computes between its modules
    is taken as another copy of its input. At least 8, unless the module says that its rows are expensive.
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
    least = 1 if getattr(module, "expensive", False) else MIN_ROWS
    return max(least, min(most_rows(row.device), 1 << (fitting.bit_length() - 1)))


def _warn_of_probabilities(returned: Tensor) -> None:
    """Warn where one row's outputs (1, C) are no logits: a second softmax would squeeze every response."""
    row = returned.detach()[0].double()
    if bool((row >= 0).all()) and abs(float(row.sum()) - 1) < _SUM:
        warn(
            f"{PROBABILITIES}, and outputs are read as logits: a second softmax squeezes every response. "
            "Take the softmax off, or say output=lambda p: p.clamp(min=1e-12).log()"
        )


def _moves(seen: list[Tensor]) -> float:
    """How far outputs of the same rows lie apart, as a share of the largest; 0 for what rounding does."""
    alone = seen[0].detach().double()
    pairs = [(alone, later[:1].detach().double()) for later in seen[1:]]
    if len(seen) == 3:
        pairs.append((seen[1].detach().double(), seen[2].detach().double()))
    apart = max((float((a - b).abs().max()) for a, b in pairs), default=0.0)
    largest = float(alone.abs().max())
    if apart <= _APART.get(seen[0].element_size(), 0.01) * largest:
        return 0.0
    return apart / largest if largest else 1.0
