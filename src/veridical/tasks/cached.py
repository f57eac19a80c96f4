"""Models trained on first use and kept in the user's cache folder, addressed by what made them."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor, nn

from veridical import storage
from veridical.errors import FormatError
from veridical.predictor import Side, take_side
from veridical.tasks.data import Data
from veridical.tasks.training import Recipe, fit

log = logging.getLogger("veridical")
KIND = "task weights"


def cache_folder() -> Path:
    """Where trained models are kept: $VERIDICAL_CACHE, else $XDG_CACHE_HOME/veridical, else ~/.cache/veridical."""
    chosen = os.environ.get("VERIDICAL_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".cache") / "veridical"


def trained(name: str, model: nn.Module, data: Data, recipe: Recipe) -> nn.Module:
    """The model with the weights this recipe gives it on these training rows: read, or made and kept.

    The address holds the network, the recipe and every training row, so that changing any of them trains
    anew. A cache that cannot be written costs only the next call's time.
    """
    rows, labels = data.training
    side = take_side(data.side, data.train)
    path = cache_folder() / "tasks" / f"{name}-{_address(model, recipe, rows, labels, side)}.safetensors"
    if path.is_file():
        try:
            tensors, _ = storage.read(path, KIND)
            model.load_state_dict(tensors)
            return model.eval()
        except (FormatError, RuntimeError) as error:
            log.warning("%s cannot be used (%s); the model is trained again", path, error)
    fit(model, rows, labels, recipe, name, side)
    try:
        storage.write(path, KIND, model.state_dict(), {"name": name, "recipe": asdict(recipe)})
    except OSError as error:
        log.warning("the trained model could not be kept in %s: %s", path.parent, error)
    return model


def _address(model: nn.Module, recipe: Recipe, rows: Tensor, labels: Tensor, side: Side) -> str:
    digest = hashlib.blake2b(digest_size=12)
    shapes = {name: list(value.shape) for name, value in model.state_dict().items()}
    digest.update(json.dumps([repr(model), shapes, asdict(recipe)], sort_keys=True).encode())
    extra = side.values() if isinstance(side, dict) else side
    for tensor in (rows, labels, *extra):
        digest.update(f"{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
