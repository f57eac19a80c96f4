"""The fine-tuning loop: random masks, a validation split, early stop, and a resume file after every epoch.

Every random choice is keyed by the seed and the epoch, and global generators (dropout) are set from a key
before each step and put back, so that a resumed run walks on exactly where it stopped.
"""

from __future__ import annotations

import copy
import logging
import math
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from veridical.core import key as keyed
from veridical.core.allowed import Between, Count, PartOf, Positive
from veridical.core.key import Key
from veridical.core.progress import track
from veridical.core.settings import check_settings
from veridical.errors import InputError
from veridical.fidelity.training_rows import Rows
from veridical.functional.devices import random_states
from veridical.models.predictor import Output, call, take_side

log = logging.getLogger("veridical")

Loss = Callable[[Tensor, Tensor], Tensor]
Optimiser = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True)
class Schedule:
    """How long and in which steps a copy of the model is fine-tuned."""

    beta: PartOf
    epochs: Count
    batch: Count
    rate: Positive
    validation: Between
    patience: Count
    masks: bool
    seed: int

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass
class Progress:
    """Where a fine-tuning stands; goes to the resume file and back."""

    start: float
    """The validation loss of the weights it began with."""
    best: dict[str, Tensor]
    best_epoch: int = 0
    """Epochs after which the validation loss was lowest; 0 is the beginning."""
    best_loss: float = math.inf
    epoch: int = 0
    history: list[dict[str, float]] = field(default_factory=list)
    forward: int = 0
    backward: int = 0

    def summary(self) -> str:
        """The last losses, for a progress bar."""
        if not self.history:
            return f"validation loss {self.start:.4f} before"
        return "loss {training:.4f}, validation loss {validation:.4f}".format(**self.history[-1])


def head_loss(head: str) -> Loss:
    """The usual loss of a head: cross-entropy, binary cross-entropy, or squared error."""
    if head == "multiclass":
        return lambda outputs, targets: F.cross_entropy(outputs, targets)
    if head == "binary":
        # column 1 is the logit of class 1 and column 0 its negative
        return lambda outputs, targets: F.binary_cross_entropy_with_logits(
            outputs[:, 1], targets.to(outputs.dtype)
        )
    if head == "multilabel":
        return lambda outputs, targets: F.binary_cross_entropy_with_logits(outputs, targets.to(outputs.dtype))
    return lambda outputs, targets: F.mse_loss(outputs, targets.to(outputs.dtype))


def fit(
    model: nn.Module,
    output: Output,
    rows: Rows,
    schedule: Schedule,
    loss: Loss,
    optimiser: Optimiser,
    resume: Path | None,
    show: bool | None,
) -> Progress:
    """Train the model in place until the validation loss stops falling; leaves its best state in it.

    After every epoch the state goes to the file `resume`, from which an interrupted run walks on.
    """
    key = Key(schedule.seed) / "fine-tuning"
    learn, held = split(len(rows.inputs), schedule.validation, key, rows.inputs.device)
    trained = [p for p in model.parameters() if p.requires_grad]
    if not trained:
        trained = [p for p in model.parameters() if p.is_floating_point()]
        for parameter in trained:
            parameter.requires_grad_(True)
    steps = optimiser(trained)
    state = None if resume is None else _resumed(resume, model, steps)
    if state is None:
        first = _validation(model, output, rows, held, schedule, loss, key)
        # the starting weights are a candidate like any other: training may only make them worse
        state = Progress(first, _copied(model), best_loss=first if math.isfinite(first) else math.inf)
        state.forward += len(held)
    what = "fine-tuning" if schedule.masks else "fine-tuning without masks"
    for epoch in track(range(state.epoch, schedule.epochs), what, show, state.summary):
        if state.epoch - state.best_epoch >= schedule.patience:
            break
        train_loss = _epoch(model, output, rows, learn, schedule, loss, steps, key, epoch)
        valid_loss = _validation(model, output, rows, held, schedule, loss, key)
        state.forward += len(learn) + len(held)
        state.backward += len(learn)
        state.history.append({"training": train_loss, "validation": valid_loss})
        if not math.isfinite(train_loss) or not math.isfinite(valid_loss):
            if resume is not None:
                resume.unlink(missing_ok=True)
            raise InputError(
                f"the loss became {train_loss} in epoch {epoch + 1}: the steps are too large; lower the rate"
            )
        state.epoch = epoch + 1
        if valid_loss < state.best_loss:
            state.best_epoch, state.best_loss, state.best = state.epoch, valid_loss, _copied(model)
        if resume is not None:
            _keep(resume, model, steps, state)
    model.load_state_dict(state.best)
    return state


def _copied(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def split(count: int, share: float, key: Key, device: torch.device) -> tuple[Tensor, Tensor]:
    """Row numbers to learn from, and those held out to choose the checkpoint by."""
    held = min(max(1, round(share * count)), count - 1)
    order = keyed.permutation(key / "split", torch.tensor([0]), 0, count)[0].to(device)
    return order[held:], order[:held]


def _epoch(
    model: nn.Module,
    output: Output,
    rows: Rows,
    learn: Tensor,
    schedule: Schedule,
    loss: Loss,
    steps: torch.optim.Optimizer,
    key: Key,
    epoch: int,
) -> float:
    # dropout acts and batch norm follows the masked batches, as in ordinary training
    model.train()
    order = learn[keyed.permutation(key / "order", torch.tensor([epoch]), 0, len(learn))[0].to(learn.device)]
    total = torch.zeros((), dtype=torch.float64, device=learn.device)
    with torch.enable_grad():
        for at, index in enumerate(batches(order, schedule.batch)):
            x = _inputs(rows, index, schedule, key, epoch + 1)
            with keyed_generators(key / "step" / epoch / at, learn.device):
                value = loss(output(call(model, x, take_side(rows.side, index))), rows.targets[index])
                steps.zero_grad()
                value.backward()
            steps.step()
            total += value.detach().double() * len(index)
    return float(total / len(learn))


def _validation(
    model: nn.Module,
    output: Output,
    rows: Rows,
    held: Tensor,
    schedule: Schedule,
    loss: Loss,
    key: Key,
) -> float:
    model.eval()
    total = torch.zeros((), dtype=torch.float64, device=held.device)
    with torch.no_grad():
        for index in held.split(schedule.batch):
            # the same masks in every epoch, so that epochs are compared on the same ground
            x = _inputs(rows, index, schedule, key / "validation", 0)
            value = loss(output(call(model, x, take_side(rows.side, index))), rows.targets[index])
            total += value.double() * len(index)
    return float(total / len(held))


def _inputs(rows: Rows, index: Tensor, schedule: Schedule, key: Key, draw: int) -> Tensor:
    return rows.masked(index, schedule.beta, key, draw) if schedule.masks else rows.inputs[index]


def batches(order: Tensor, size: int) -> Iterator[Tensor]:
    """Batches of at least two rows, since batch norm cannot learn from one."""
    pieces = list(order.split(size))
    if len(pieces) > 1 and len(pieces[-1]) == 1:
        pieces[-2:] = [torch.cat(pieces[-2:])]
    yield from pieces


@contextmanager
def keyed_generators(key: Key, device: torch.device) -> Iterator[None]:
    """Dropout draws from torch's global generators: set them from a key and put them back."""
    with torch.random.fork_rng(devices=random_states(device)):
        torch.manual_seed(key.state & (2**63 - 1))
        yield


def _keep(path: Path, model: nn.Module, steps: torch.optim.Optimizer, state: Progress) -> None:
    """Write the resume file atomically: an interruption leaves the last whole one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"model": model.state_dict(), "optimiser": steps.state_dict(), "progress": vars(state)}
    handle, part = tempfile.mkstemp(dir=path.parent, suffix=".part")
    os.close(handle)
    try:
        torch.save(content, part)
        os.replace(part, path)
    finally:
        Path(part).unlink(missing_ok=True)


def _resumed(path: Path, model: nn.Module, steps: torch.optim.Optimizer) -> Progress | None:
    if not path.is_file():
        return None
    backup = copy.deepcopy(model.state_dict())
    try:
        place = next(model.parameters()).device
        content: dict[str, Any] = torch.load(path, map_location=place, weights_only=True)
        model.load_state_dict(content["model"])
        steps.load_state_dict(content["optimiser"])
        log.info("fine-tuning goes on from epoch %d in %s", content["progress"]["epoch"], path)
        return Progress(**content["progress"])
    except Exception as error:
        log.warning("%s cannot be resumed (%s); fine-tuning starts anew", path, error)
        model.load_state_dict(backup)
        return None
