"""Fine-tune a copy of the model under random masks, once for all explainers: `finetune(task)`."""

from __future__ import annotations

import copy
import functools
import hashlib
import json
import logging
import warnings
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from veridical.errors import FormatError, InputError, NotApplicableError, ShapeError, VeridicalWarning
from veridical.fidelity.artefact import KIND, Finetuned, space_facts, state_digest, tensor_bytes
from veridical.fidelity.correctness import accuracy, at_chance, check_labels, own_answers
from veridical.fidelity.removal import budget, check_share, smallest_beta
from veridical.fidelity.training import Loss, Optimiser, Rows, Schedule, fit, head_loss
from veridical.model.adapters import ArrayModel, FunctionModel
from veridical.model.noisy_copy import WeightView
from veridical.model.predictor import Side
from veridical.tasks.cached import cache_folder
from veridical.values import files
from veridical.values.space import Space
from veridical.values.task import Task

log = logging.getLogger("veridical")

MODE = "dropout active and batch norm following the masked batches while fine-tuning; eval mode to judge"
UNSEEN_GAP = 0.1
"""How far accuracy on the training rows may lie below that on the evaluated ones before we say so."""


def finetune(
    task: Task,
    train: Any = None,
    *,
    beta: float = 0.1,
    epochs: int = 30,
    batch: int = 64,
    rate: float = 1e-4,
    loss: Loss | None = None,
    optimiser: Optimiser | None = None,
    validation: float = 0.1,
    patience: int = 5,
    masks: bool = True,
    train_side: Side | None = None,
    train_space: Space | None = None,
    seed: int = 0,
    cache: str | Path | None = None,
    progress: bool | None = None,
) -> Finetuned:
    """Fine-tune a copy of the task's model to miss up to a share `beta` of its features (eq. 5).

    `train` is rows or (rows, labels), by default those of the task; without labels the model's own
    predictions are the targets, and the artefact says so. Each row of each batch loses a count uniform on
    {0..B} of features, B = floor(beta * n), filled as the task fills. `loss(outputs, targets)` and
    `optimiser(parameters)` are the caller's, else the usual loss of the head and Adam at `rate`.

    The state with the lowest loss on a held-out share of the rows is kept; training stops after `patience`
    epochs without a lower one. An interrupted run resumes. The result lies in `cache`, else
    $VERIDICAL_CACHE, else ~/.cache/veridical, addressed by weights, data and settings. `masks=False` trains
    on whole rows: the control of the robustness table. `train_space` says which features exist in the
    training rows where rows differ.
    """
    check_share("beta", beta)
    schedule = Schedule(beta, epochs, batch, rate, validation, patience, masks, seed)
    reason = why_no_finetuning(task, train, train_space)
    if reason is not None:
        raise NotApplicableError(f"the model cannot be fine-tuned: {reason}")
    rows, origin, start = training_rows(task, train, train_side, train_space)
    n = rows.space.counts(len(rows.inputs))
    if masks and int(budget(n, beta).max()) < 1:
        most = int(n.max())
        raise InputError(
            f"beta {beta:g} of {most} features is less than one; the smallest beta that works is "
            f"{smallest_beta(most):g}"
        )
    weights = state_digest(task.predictor.model)
    facts = {
        "weights": weights,
        "data": _data_digest(rows, start),
        "labels": origin,
        "space": space_facts(task.space),
        "fill": task.fill.to_json(),
        "settings": asdict(schedule),
        "loss": described(loss),
        "optimiser": described(optimiser),
        "head": task.head,
        "output": described(task.predictor.output),
    }
    folder = cache_folder() / "finetuned" if cache is None else Path(cache)
    digest = hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=12).hexdigest()
    path = folder / f"finetuned-{digest}.safetensors"
    if path.is_file():
        try:
            files.read(path, KIND, path.stem)
            return Finetuned(str(path))
        except FormatError as error:
            log.warning("%s; the model is fine-tuned again", error)
    model = copy.deepcopy(task.predictor.model)
    chosen = optimiser or (lambda parameters: torch.optim.Adam(parameters, lr=rate))
    resume = folder / f"finetuned-{digest}.resume.pt"
    state = fit(
        model, task.predictor.output, rows, schedule, loss or head_loss(task.head), chosen, resume, progress
    )
    header = {
        **facts,
        "mode": MODE,
        "rows": len(rows.inputs),
        "history": state.history,
        "best_epoch": state.best_epoch,
        "cost": [state.forward, state.backward],
    }
    files.write(path, KIND, model.state_dict(), header, path.stem)
    resume.unlink(missing_ok=True)
    return Finetuned(str(path))


def why_no_finetuning(task: Task, train: Any = None, train_space: Space | None = None) -> str | None:
    """Why the task's model cannot be fine-tuned, or None if it can."""
    model = task.predictor.model
    if isinstance(model, WeightView):
        return "its weights are a noisy view of a model; fine-tune the task it was made from (task.reference)"
    if isinstance(model, ArrayModel | FunctionModel) or not any(
        p.is_floating_point() for p in model.parameters()
    ):
        return f"{type(model).__name__} has no weights that torch can train; pass an nn.Module, or use RFid"
    if train is None and task.train is None:
        return (
            "there are no training rows; give the task train=(rows, labels), or pass them to "
            "fidelity.finetune(task, train). Without any, RFid needs no training"
        )
    if train_space is None and task.space.per_sample:
        return "features differ between samples; say those of the training rows with train_space=..."
    if train_space is None and task.space.valid is not None and _never_features(task) is None:
        return (
            "samples differ in which features exist; say which exist in the training rows with "
            "train_space=... (a Space with valid=)"
        )
    return None


def training_rows(
    task: Task, train: Any, train_side: Side | None, train_space: Space | None
) -> tuple[Rows, str, Tensor]:
    """The rows to learn from with their targets; where the targets came from; the model's first answers."""
    inputs, labels, side = task.train, task.train_labels, task.train_side
    if train is not None:
        given, labels = train if isinstance(train, tuple) else (train, None)
        inputs = torch.as_tensor(given).to(task.inputs)
        labels = None if labels is None else torch.as_tensor(labels).to(task.device)
        side = ()
    side = side if train_side is None else train_side
    assert inputs is not None
    if inputs.shape[1:] != task.inputs.shape[1:]:
        raise ShapeError(
            f"training rows have shape {tuple(inputs.shape[1:])}, the task's inputs "
            f"{tuple(task.inputs.shape[1:])}"
        )
    if len(inputs) < 2:
        raise InputError(f"fine-tuning needs at least 2 rows (one is held out), got {len(inputs)}")
    if labels is not None and len(labels) != len(inputs):
        raise ShapeError(f"{len(labels)} training labels for {len(inputs)} training rows")
    if bool(task.side) and not bool(side):
        raise InputError("the task has side inputs; give those of the training rows with train_side=...")
    answers = task.uncounted(lambda: task.predictor.outputs(inputs, side))
    if labels is None:
        targets, origin = own_answers(answers, task), "predicted"
    else:
        targets, origin = check_labels(labels, task, "training labels"), "given"
        _check_seen(task, answers, targets)
    space = train_space or _train_space(task, inputs)
    state = task.fill.prepare(task.train if task.train is not None else inputs, task.space)
    return Rows(inputs, targets, side, space.to(task.device), task.fill, state), origin, answers


def _check_seen(task: Task, answers: Tensor, targets: Tensor) -> None:
    """Refuse rows the model cannot have been trained on, and warn of rows it knows far less well."""
    reason = at_chance(answers, targets, task)
    if reason is not None:
        raise InputError(
            f"these training rows (or their labels) are none the model has learnt: {reason}. Fine-tuning on "
            "them would teach another task; pass the rows the model was trained on, with labels in its order"
        )
    if task.labels is None or task.head == "regression":
        return
    here = accuracy(task.outputs, check_labels(task.labels, task), task)
    there = accuracy(answers, targets, task)
    if there < here - UNSEEN_GAP:
        warnings.warn(
            f"the model is right on {there:.1%} of the training rows and on {here:.1%} of the evaluated "
            "ones: it may never have seen these training rows",
            VeridicalWarning,
            stacklevel=4,
        )


def _train_space(task: Task, inputs: Tensor) -> Space:
    """The task's space over the training rows; tokens that are never features stay none."""
    if task.space.valid is None:
        return task.space
    never = _never_features(task)
    assert never is not None
    return replace(task.space, valid=~torch.isin(inputs, never), names=None)


def _never_features(task: Task) -> Tensor | None:
    """Token ids (pads, special tokens) that stand only where no feature is; None where that tells nothing."""
    if task.space.kind != "token" or task.inputs.is_floating_point() or task.space.valid is None:
        return None
    outside = task.inputs[~task.space.valid].unique()
    inside = task.inputs[task.space.valid].unique()
    return outside[~torch.isin(outside, inside)]


def _data_digest(rows: Rows, answers: Tensor) -> str:
    digest = hashlib.blake2b(digest_size=16)
    side = rows.side.values() if isinstance(rows.side, dict) else rows.side
    state = () if rows.fill_state is None else (rows.fill_state,)
    valid = () if rows.space.valid is None else (rows.space.valid,)
    for tensor in (rows.inputs, rows.targets, rows.space.labels, *side, *state, *valid):
        digest.update(tensor_bytes(tensor))
    # what a model computes does not all lie in its weights
    digest.update(tensor_bytes(answers[:256].argmax(-1)))
    return digest.hexdigest()


def described(thing: Callable[..., Any] | None) -> str:
    """A text that stands for a function in the address of an artefact: its name and its code."""
    if thing is None:
        return "default"
    if isinstance(thing, functools.partial):
        return f"partial({described(thing.func)}, {thing.args!r}, {sorted(thing.keywords.items())!r})"
    if isinstance(thing, nn.Module):
        plain = {k: v for k, v in vars(thing).items() if isinstance(v, bool | int | float | str)}
        return f"{state_digest(thing)} {sorted(plain.items())!r}"
    name = f"{getattr(thing, '__module__', '?')}:{getattr(thing, '__qualname__', type(thing).__qualname__)}"
    code = getattr(thing, "__code__", None)
    if code is None:
        return name
    # of what a function closes over only plain values: the text of other things may hold their address
    held = [cell.cell_contents for cell in getattr(thing, "__closure__", None) or ()]
    cells = [repr(value) for value in held if isinstance(value, bool | int | float | str)]
    body = repr(
        (code.co_code, [c for c in code.co_consts if not hasattr(c, "co_code")], code.co_names, cells)
    )
    return f"{name} {hashlib.blake2b(body.encode(), digest_size=8).hexdigest()}"
