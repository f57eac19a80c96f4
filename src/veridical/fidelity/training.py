"""The fine-tuning loop: random masks, a validation split and early stop.

Every random choice is keyed by the seed and the epoch, and global generators (dropout) are set from a key
before each step and put back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.core.progress import track
from veridical.errors import InputError, NotApplicableError
from veridical.fidelity.training_rows import Rows
from veridical.functional.devices import random_states
from veridical.models.cost import Cost
from veridical.models.predictor import Output, call, take_side

Loss = Callable[[Tensor, Tensor], Tensor]
Optimiser = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True)
class Schedule:
    """How long and in which steps a copy of the model is fine-tuned."""

    beta: float
    epochs: int
    batch: int
    rate: float
    validation: float
    patience: int
    masks: bool
    seed: int


@dataclass
class Progress:
    """Where a fine-tuning stands."""

    start: float
    """The validation loss of the weights it began with."""
    best: dict[str, Tensor]
    best_epoch: int = 0
    """Epochs after which the validation loss was lowest; 0 is the beginning."""
    best_loss: float = math.inf
    history: list[dict[str, float]] = field(default_factory=list)
    cost: Cost = field(default_factory=Cost)

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
    plain = F.binary_cross_entropy_with_logits if head == "multilabel" else F.mse_loss
    return lambda outputs, targets: plain(outputs, targets.to(outputs.dtype))


def fit(
    model: nn.Module,
    output: Output,
    rows: Rows,
    schedule: Schedule,
    loss: Loss,
    optimiser: Optimiser,
    show: bool | None,
) -> Progress:
    """Train the model in place until the validation loss stops falling; leaves its best state in it."""
    key = Key(schedule.seed) / "fine-tuning"
    learn, held = split(len(rows.inputs), schedule.validation, key, rows.inputs.device)
    trained = [p for p in model.parameters() if p.requires_grad]
    if not trained:
        trained = [p for p in model.parameters() if p.is_floating_point()]
        for parameter in trained:
            parameter.requires_grad_(True)
    steps = optimiser(trained)

    def loss_on(index: Tensor, masks: Key, draw: int) -> Tensor:
        x = rows.masked(index, schedule.beta, masks, draw) if schedule.masks else rows.inputs[index]
        try:
            outputs = output(call(model, x, take_side(rows.side, index)))
        except Exception as error:
            raise NotApplicableError(
                f"the model cannot be fine-tuned: on a batch of {len(index)} rows it raises "
                f"{type(error).__name__}: {error}"
            ) from error
        if model.training and not outputs.requires_grad:
            raise NotApplicableError(
                "the model cannot be fine-tuned: its outputs carry no gradient, as under torch.no_grad()"
            )
        return loss(outputs, rows.targets[index])

    def trained_loss(epoch: int) -> float:
        # dropout acts and batch norm follows the masked batches, as in ordinary training
        model.train()
        order = keyed.permutation(key / "order", torch.tensor([epoch]), 0, len(learn))[0].to(learn.device)
        total = torch.zeros((), dtype=torch.float64, device=learn.device)
        for at, index in enumerate(batches(learn[order], schedule.batch)):
            with torch.enable_grad(), keyed_generators(key / "step" / epoch / at, learn.device):
                value = loss_on(index, key, epoch + 1)
                steps.zero_grad()
                value.backward()
            steps.step()
            total += value.detach().double() * len(index)
        return float(total / len(learn))

    def validation_loss() -> float:
        model.eval()
        with torch.no_grad():
            # the same masks in every epoch, so that epochs are compared on the same ground
            each = [
                loss_on(index, key / "validation", 0).double() * len(index)
                for index in held.split(schedule.batch)
            ]
        return float(sum(each) / len(held))

    first = validation_loss()
    # the starting weights are a candidate like any other: training may only make them worse
    state = Progress(first, _copied(model), best_loss=first if math.isfinite(first) else math.inf)
    what = "fine-tuning" if schedule.masks else "fine-tuning without masks"
    for epoch in track(range(schedule.epochs), what, show, state.summary):
        if epoch - state.best_epoch >= schedule.patience:
            break
        losses = {"training": trained_loss(epoch), "validation": validation_loss()}
        state.history.append(losses)
        if not all(map(math.isfinite, losses.values())):
            raise InputError(
                f"the loss became {losses['training']} in epoch {epoch + 1}: the steps are too large; lower "
                "the rate"
            )
        if losses["validation"] < state.best_loss:
            state.best_epoch, state.best_loss, state.best = epoch + 1, losses["validation"], _copied(model)
    model.load_state_dict(state.best)
    epochs = len(state.history)
    state.cost = Cost(len(held) + epochs * len(rows.inputs), epochs * len(learn))
    return state


def _copied(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def split(count: int, share: float, key: Key, device: torch.device) -> tuple[Tensor, Tensor]:
    """Row numbers to learn from, and those held out to choose the checkpoint by."""
    held = min(max(1, round(share * count)), count - 1)
    order = keyed.permutation(key / "split", torch.tensor([0]), 0, count)[0].to(device)
    return order[held:], order[:held]


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
