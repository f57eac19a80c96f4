"""Rows with a fixed split, small models trained on them by one deterministic loop, and their cache."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from veridical.core import files
from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.core.progress import track
from veridical.core.space import Space
from veridical.errors import FormatError
from veridical.models.predictor import Side, call, take_side
from veridical.values.task import Task

# --- rows and tasks on them -----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Data:
    """Rows, labels and their fixed split; a row's number is its id."""

    rows: Tensor
    labels: Tensor
    train: Tensor
    test: Tensor
    side: Side = ()
    names: tuple[str, ...] | None = None
    masks: Tensor | None = None

    @property
    def training(self) -> tuple[Tensor, Tensor]:
        """The rows and labels a model may learn from."""
        return self.rows[self.train], self.labels[self.train]


def split(rows: int, test_share: float, key: Key) -> tuple[Tensor, Tensor]:
    """Row numbers of a fixed training and test part, each in ascending order."""
    order = keyed.permutation(key / "split", torch.tensor([0]), 0, rows)[0]
    held = round(test_share * rows)
    return order[held:].sort().values, order[:held].sort().values


def pick(data: Data, name: str, samples: int | None, seed: int) -> Tensor:
    """Row numbers of `samples` held-out rows drawn without replacement; all of them, in order, for None."""
    if samples is None or samples >= len(data.test):
        return data.test
    order = keyed.permutation(Key(seed) / name / "samples", torch.tensor([0]), 0, len(data.test))[0]
    return data.test[order[:samples]]


def assemble(model: nn.Module, data: Data, name: str, samples: int | None, seed: int, **extra: Any) -> Task:
    """The task on the held-out rows, or some of them; training rows and labels go along."""
    chosen = pick(data, name, samples, seed)
    if data.names is not None:
        extra.setdefault("space", Space.columns(len(data.names), data.names))
    return Task(
        model,
        data.rows[chosen],
        labels=data.labels[chosen],
        masks=None if data.masks is None else data.masks[chosen],
        train=data.training,
        side=take_side(data.side, chosen),
        train_side=take_side(data.side, data.train),
        ids=chosen,
        name=name,
        **extra,
    )


# --- training -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recipe:
    """How a model is trained; part of the address of its cached weights."""

    epochs: int
    rate: float = 1e-3
    batch: int = 64
    decay: float = 0.0
    loss: str = "cross_entropy"
    seed: int = 0
    threads: int = 1


def initialise(model: nn.Module, key: Key) -> None:
    """Draw the weights from N(0, 2 / fan-in) and zero the biases, keyed by parameter name.

    Norm layers keep their ones and zeros, embeddings get N(0, 0.1), recurrent weights N(0, 1 / fan-in).
    """
    kinds = {
        f"{name}.{part}" if name else part: module
        for name, module in model.named_modules()
        for part, _ in module.named_parameters(recurse=False)
    }
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            module = kinds[name]
            if "norm" in type(module).__name__.lower():
                continue
            if parameter.dim() < 2:
                parameter.zero_()
                continue
            draw = keyed.parameter_noise(key, name, parameter.shape)
            if isinstance(module, nn.Embedding):
                scale = 0.1
            else:
                fan_in = parameter[0].numel()
                scale = math.sqrt((1.0 if isinstance(module, nn.RNNBase) else 2.0) / fan_in)
            parameter.copy_(draw * scale)
            if isinstance(module, nn.Embedding) and module.padding_idx is not None:
                parameter[module.padding_idx] = 0.0


def fit(
    model: nn.Module, rows: Tensor, labels: Tensor, recipe: Recipe, what: str, side: Side = ()
) -> nn.Module:
    """Train the model in place from keyed initial weights and hand it back in eval mode."""
    key = Key(recipe.seed) / "training" / what
    initialise(model, key / "weights")
    chosen = [p for p in model.parameters() if p.requires_grad]
    steps = recipe.epochs * -(-len(rows) // recipe.batch)
    with _threads(recipe.threads), torch.enable_grad():
        optimiser = torch.optim.AdamW(chosen, lr=recipe.rate, weight_decay=recipe.decay)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, recipe.rate, total_steps=steps)
        model.train()
        for epoch in track(range(recipe.epochs), f"training {what}"):
            order = keyed.permutation(key / "order", torch.tensor([epoch]), 0, len(rows))[0]
            for at in range(0, len(rows), recipe.batch):
                index = order[at : at + recipe.batch]
                outputs = call(model, rows[index], take_side(side, index))
                if recipe.loss == "cross_entropy":
                    loss = F.cross_entropy(outputs, labels[index])
                else:
                    loss = F.mse_loss(outputs[:, 0], labels[index].to(outputs.dtype))
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                schedule.step()
    model.eval()
    return model.requires_grad_(True)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """A fixed number of threads, so that the same machine always trains the same bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# --- trained models kept on disk ------------------------------------------------------------------------

log = logging.getLogger("veridical")
KIND = "task weights"


def cache_folder() -> Path:
    """Where trained models are kept: $VERIDICAL_CACHE, $XDG_CACHE_HOME/veridical or ~/.cache/veridical."""
    chosen = os.environ.get("VERIDICAL_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".cache") / "veridical"


def trained(name: str, model: nn.Module, data: Data, recipe: Recipe) -> nn.Module:
    """The model with the weights this recipe gives it on these training rows: read, or made and kept."""
    rows, labels = data.training
    side = take_side(data.side, data.train)
    extra = side.values() if isinstance(side, dict) else side

    def make() -> None:
        fit(model, rows, labels, recipe, name, side)

    return kept(name, model, make, [asdict(recipe)], [rows, labels, *extra])


def kept(
    name: str, model: nn.Module, make: Callable[[], None], facts: Sequence[Any], tensors: Sequence[Tensor]
) -> nn.Module:
    """Fill the model from the cache, or let `make` fill it and keep the result.

    The address holds the network and its code, the facts and the tensors it was made from, so that changing
    any of them makes it anew. A cache that cannot be written costs only the next call's time.
    """
    path = cache_folder() / "tasks" / f"{name}-{_address(model, facts, tensors)}.safetensors"
    if path.is_file():
        try:
            weights, _ = files.load_tensors(path, KIND, path.stem)
            model.load_state_dict(weights)
            return model.eval()
        except (FormatError, RuntimeError) as error:
            log.warning("%s cannot be used (%s); the model is trained again", path, error)
    make()
    try:
        files.save_tensors(path, KIND, model.state_dict(), {"name": name}, path.stem)
    except OSError as error:
        log.warning("the trained model could not be kept in %s: %s", path.parent, error)
    return model.eval()


def _address(model: nn.Module, facts: Sequence[Any], tensors: Sequence[Tensor]) -> str:
    digest = hashlib.blake2b(digest_size=12)
    for source in ("networks.py", "training.py"):  # the same weights mean another model under other code
        digest.update((Path(__file__).parent / source).read_bytes())
    shapes = {name: list(value.shape) for name, value in model.state_dict().items()}
    digest.update(json.dumps([repr(model), shapes, list(facts)], sort_keys=True).encode())
    for tensor in tensors:
        digest.update(f"{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
