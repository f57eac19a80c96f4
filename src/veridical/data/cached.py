"""Models trained on first use and kept in the user's cache folder, addressed by what made them."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from veridical.data.data import Data
from veridical.data.training import Recipe, fit
from veridical.errors import FormatError
from veridical.models.predictor import take_side
from veridical.values import files

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
            weights, _ = files.read(path, KIND, path.stem)
            model.load_state_dict(weights)
            return model.eval()
        except (FormatError, RuntimeError) as error:
            log.warning("%s cannot be used (%s); the model is trained again", path, error)
    make()
    try:
        files.write(path, KIND, model.state_dict(), {"name": name}, path.stem)
    except OSError as error:
        log.warning("the trained model could not be kept in %s: %s", path.parent, error)
    return model.eval()


def _address(model: nn.Module, facts: Sequence[Any], tensors: Sequence[Tensor]) -> str:
    digest = hashlib.blake2b(digest_size=12)
    for source in (
        "networks.py",
        "causal_networks.py",
        "training.py",
    ):  # the same weights mean another model under other code
        digest.update((Path(__file__).parent / source).read_bytes())
    shapes = {name: list(value.shape) for name, value in model.state_dict().items()}
    digest.update(json.dumps([repr(model), shapes, list(facts)], sort_keys=True).encode())
    for tensor in tensors:
        digest.update(f"{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
