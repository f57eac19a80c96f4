"""Fine-tune a copy of the model under random masks, once for all explainers: `finetune(task)`."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from veridical.core import files
from veridical.core.allowed import Between, Count, PartOf, Positive
from veridical.core.key import Key
from veridical.core.settings import checked
from veridical.core.space import Space
from veridical.errors import FormatError, InputError, NotApplicableError, warn
from veridical.fidelity.artefact import (
    KIND,
    ROW_DIGESTS,
    Finetuned,
    HeldOutCheck,
    check_held_out,
    space_facts,
    state_digest,
)
from veridical.fidelity.training import Loss, Optimiser, Schedule, fit, head_loss, split
from veridical.fidelity.training_rows import Columns, Rows, present_features, training_rows
from veridical.models.adapters import ArrayModel, FunctionModel
from veridical.models.cost import Cost
from veridical.models.predictor import Side
from veridical.values.content_hash import hash_tensors
from veridical.values.task import Task

VERSION = 4
"""Of what an artefact holds and how it is made: another one is another artefact."""
MODE = "dropout active and batch norm following the masked batches while fine-tuning; eval mode to evaluate"


def cache_folder() -> Path:
    """Where fine-tuned models are kept: $VERIDICAL_CACHE, $XDG_CACHE_HOME/veridical or ~/.cache/veridical."""
    chosen = os.environ.get("VERIDICAL_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".cache") / "veridical"


@checked
def finetune(
    task: Task,
    train: Any = None,
    *,
    beta: PartOf = 0.1,
    epochs: Count = 30,
    batch: Count = 64,
    rate: Positive = 1e-4,
    loss: Loss | None = None,
    optimiser: Optimiser | None = None,
    validation: Between = 0.1,
    patience: Count = 5,
    masks: bool = True,
    train_side: Side | None = None,
    train_space: Space | None = None,
    columns: Columns | None = None,
    key: str | None = None,
    seed: int = 0,
    cache: str | Path | None = None,
    progress: bool | None = None,
) -> Finetuned:
    """Fine-tune a copy of the task's model to miss up to a share `beta` of its features (eq. 5).

    Each row of each batch loses a count uniform on {0..B} of features, B = max(1, floor(beta * n)), filled as
    the task fills; parameters that need no gradient stay as they are. The state with the lowest loss on a
    held-out share of the rows is kept, be it the one before training, and compared on the same rows with the
    original model (`artefact.held_out`).

    Parameters
    ----------
    task : Task
        The model to copy, the fill, and the features.
    train : rows, (rows, labels), torch Dataset or DataLoader, or Hugging Face dataset, optional
        What is learnt from, by default the rows of the task; datasets are read as batches need them. Without
        labels the model's own predictions are the targets, and the artefact says so.
    beta : float
        The largest share of features that a row loses.
    epochs, batch, rate : int, int, float
        Passes over the rows at most, rows per step, and the learning rate.
    loss : callable, optional
        `loss(outputs, targets)`; None is the usual loss of the head. Needs a `key`.
    optimiser : callable, optional
        `optimiser(parameters)`; None is Adam at `rate`. Needs a `key`.
    validation : float
        Share of the rows that is held out.
    patience : int
        Epochs without a lower validation loss after which training stops.
    masks : bool
        False trains on whole rows: the control of the robustness table.
    train_side : tuple or dict of Tensor, optional
        Side inputs of the training rows.
    train_space : Space, optional
        Which features exist in the training rows, where rows differ.
    columns : (str, str or None), optional
        Names of inputs and labels where rows are mappings.
    key : str, optional
        A name that stands for a loss or an optimiser of the caller's own in the address of the artefact.
    seed : int
        Seed of the split, the order and the masks.
    cache : str or Path, optional
        Folder of the artefact, addressed by weights, data and settings; None is $VERIDICAL_CACHE, else
        ~/.cache/veridical.
    progress : bool, optional
        Whether a bar is shown; None shows it on terminals.

    Returns
    -------
    Finetuned
        The artefact: found in the cache, or made.

    Raises
    ------
    NotApplicableError
        Where the model has no weights that torch can train, or there are no training rows.
    InputError
        Where rows, labels or settings do not fit.
    """
    schedule = Schedule(beta, epochs, batch, rate, validation, patience, masks, seed)
    reason = why_no_finetuning(task, train, train_space)
    if reason is not None:
        raise NotApplicableError(f"the model cannot be fine-tuned: {reason}")
    if key is None and (loss is not None or optimiser is not None):
        raise InputError(
            "a loss or an optimiser of your own needs key='...', a name that stands for it in the address of "
            "the artefact: the same key finds the same artefact, so give another one whenever either changes"
        )
    rows = training_rows(task, train, train_side, train_space, columns)
    model = task.predictor.source.copied()
    facts = {
        "version": VERSION,
        "weights": state_digest(model),
        "trained": [name for name, parameter in model.named_parameters() if parameter.requires_grad],
        "data": data_digest(rows),
        "labels": rows.origin,
        "space": space_facts(task.space),
        "fill": task.fill.to_json(),
        "settings": asdict(schedule),
        "loss": _name(loss),
        "optimiser": _name(optimiser),
        "key": key,
        "head": task.head,
        "output": _name(task.predictor.output),
    }
    folder = cache_folder() / "finetuned" if cache is None else Path(cache)
    digest = hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=12).hexdigest()
    path = folder / f"finetuned-{digest}.safetensors"
    if _readable(path):
        return Finetuned(str(path))
    chosen = optimiser or (lambda parameters: torch.optim.Adam(parameters, lr=rate))
    state = fit(model, task.predictor.output, rows, schedule, loss or head_loss(task.head), chosen, progress)
    tuned = task.with_module(model.eval())
    _, held = split(len(rows.inputs), validation, Key(seed) / "fine-tuning", task.device)
    held_out, spent = _checked(task, tuned, rows, held)
    header = {
        **facts,
        "mode": MODE,
        "rows": len(rows.inputs),
        "start": state.start,
        "history": state.history,
        "best_epoch": state.best_epoch,
        "held_out": asdict(held_out),
        "cost": [state.cost.forward + spent.forward, state.cost.backward + spent.backward],
    }
    files.save_tensors(path, KIND, {**model.state_dict(), ROW_DIGESTS: rows.digests}, header, path.stem)
    return Finetuned(str(path))


def given_or_made(
    task: Task, finetuned: Finetuned | None, beta: float | None, default: float, **settings: Any
) -> Finetuned:
    """The fine-tuned model given, or one made with these settings; what it would ignore is refused."""
    if finetuned is None:
        return finetune(task, beta=beta or default, **settings)
    if beta not in (None, finetuned.beta):
        raise InputError(f"the model was fine-tuned with beta {finetuned.beta:g}, not {beta:g}")
    ignored = [name for name in settings if name not in ("cache", "progress")]
    if ignored:
        raise InputError(f"a fine-tuned model is given, and {', '.join(ignored)} would be ignored")
    return finetuned


def _name(function: Any) -> str:
    """The qualified name of a function, or of what a partial or an object was made of."""
    named = getattr(function, "func", function)
    named = named if hasattr(named, "__qualname__") else type(named)
    return "default" if function is None else f"{named.__module__}.{named.__qualname__}"


def _readable(path: Path) -> bool:
    """Whether an artefact lies there that can be read; a broken one is warned of and made anew."""
    if not path.is_file():
        return False
    try:
        files.load_tensors(path, KIND, path.stem)
    except (FormatError, ValueError, KeyError) as error:
        warn(f"{path.name} cannot be read and is made anew: {error}")
        return False
    return True


def _checked(task: Task, tuned: Task, rows: Rows, held: Tensor) -> tuple[HeldOutCheck, Cost]:
    """The check on held-out rows and what it cost, which is the artefact's and not the task's."""
    meter = task.predictor.meter
    before = meter.cost
    try:
        return check_held_out(task, tuned, rows, held), meter.cost - before
    finally:
        meter.reset(before)


def data_digest(rows: Rows) -> str:
    """What stands for training rows: inputs, targets, features, side inputs, fill."""
    side = rows.side if isinstance(rows.side, dict) else {str(at): part for at, part in enumerate(rows.side)}
    # what a model computes does not all lie in its weights
    answers = rows.answers[:256]
    if rows.answers.is_floating_point() and rows.answers.dim() > 1:
        answers = answers.argmax(-1)
    own = {"targets": rows.targets, "labels": rows.space.labels, "valid": rows.space.valid}
    own |= {"fill": rows.fill_state, "answers": answers}
    digest = hash_tensors(own | {f"side {name}": part for name, part in side.items()})
    digest.update(rows.content.encode())
    return digest.hexdigest()


def why_no_finetuning(task: Task, train: Any = None, train_space: Space | None = None) -> str | None:
    """Why the task's model cannot be fine-tuned, or None if it can."""
    model = task.predictor.model
    if task.predictor.weights is not None:
        return "its weights are a noisy view of a model; fine-tune the task it was made from (task.reference)"
    if isinstance(model, ArrayModel | FunctionModel) or not any(
        p.is_floating_point() for p in model.parameters()
    ):
        return "the model has no weights that torch can train; pass an nn.Module, or use RFid"
    if train is None and task.train is None:
        return (
            "there are no training rows; give the task train=(rows, labels), or pass them to "
            "fidelity.finetune(task, train). Without any, RFid needs no training"
        )
    if train_space is None and task.space.per_sample:
        return "features differ between samples; say those of the training rows with train_space=..."
    if train_space is None and task.space.valid is not None and present_features(task) is None:
        return (
            "samples differ in which features exist; say which exist in the training rows with "
            "train_space=... (a Space with valid=)"
        )
    return None
