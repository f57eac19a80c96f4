"""Weights from a file, into the network a function builds."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from veridical.data.files import BROKEN, existing_file, read_safetensors
from veridical.data.trust import import_attribute
from veridical.errors import FormatError, InputError

SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """Tensors by name from a .safetensors file, or from one of torch's that holds nothing but tensors."""
    path = existing_file(path)
    if path.suffix.lower() == ".safetensors":
        return read_safetensors(path)
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, *BROKEN) as error:
        raise FormatError(
            f"{path.name} holds more than weights, or is damaged; a whole pickled model can run code and is "
            "never read. Save torch.save(model.state_dict(), path), or better a .safetensors file "
            f"({str(error).partition(chr(10))[0]})"
        ) from error
    return _state(found, path)


def _state(found: Any, path: Path) -> dict[str, Tensor]:
    """The state dict in what torch read: a checkpoint keeps it beside the epoch and the optimiser."""
    for name in ("state_dict", "model_state_dict", "model"):
        if isinstance(found, Mapping) and isinstance(found.get(name), Mapping):
            found = found[name]
    if not isinstance(found, Mapping) or not all(isinstance(value, Tensor) for value in found.values()):
        raise FormatError(f"{path.name} is no state dict: expected tensors by name")
    return dict(found)


def load_weights(path: str | Path, arch: Any, allow_code: bool = False) -> nn.Module:
    """The network that `arch` builds, in eval mode and with the weights of this file.

    `arch` is a module, a function without arguments that makes one, or the import path of either.
    """
    path = existing_file(path)
    if arch is None:
        raise InputError(
            f"{path.name} holds weights, not the network they belong to: name the function that builds it "
            "with --arch module:function"
        )
    built = import_attribute(arch, allow_code) if isinstance(arch, str) else arch
    if not isinstance(built, nn.Module):
        if not callable(built):
            raise InputError(f"arch is a {type(built).__name__}; expected a function that builds a module")
        try:
            built = built()
        except TypeError as error:
            raise InputError(f"arch must build the network without arguments: {error}") from error
    if not isinstance(built, nn.Module):
        raise InputError(f"arch built a {type(built).__name__}; expected a torch.nn.Module")
    fit_weights(built, read_weights(path), path.name)
    return built.eval()


def fit_weights(module: nn.Module, weights: Mapping[str, Tensor], name: str) -> None:
    """Put weights into a network, all of them and nothing else, or say what does not fit."""
    held = module.state_dict()
    if not set(weights) & set(held):
        # weights saved from a wrapper (DataParallel, compile) carry its name in front
        for prefix in ("module.", "_orig_mod.", "model."):
            if all(key.startswith(prefix) for key in weights):
                weights = {key.removeprefix(prefix): value for key, value in weights.items()}
    missing, unknown = sorted(set(held) - set(weights)), sorted(set(weights) - set(held))
    problems = [f"it lacks {_few(missing)}"] if missing else []
    if unknown:
        problems.append(f"it has {_few(unknown)}, which the network does not")
    shapes = [
        f"{key} is {tuple(weights[key].shape)} and must be {tuple(held[key].shape)}"
        for key in held
        if key in weights and weights[key].shape != held[key].shape
    ]
    if shapes:
        problems.append(_few(shapes))
    if problems:
        raise InputError(
            f"the weights in {name} do not fit the network {type(module).__name__}: {'; '.join(problems)}"
        )
    module.load_state_dict(dict(weights))


def _few(names: list[str], most: int = 5) -> str:
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")
