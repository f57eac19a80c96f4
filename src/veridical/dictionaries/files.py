"""Dictionaries on disk: our own files, SAELens' folders, and modules of overcomplete."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from veridical.concepts.dictionary import Dictionary
from veridical.concepts.methods.matching_pursuit import MatchingPursuit
from veridical.concepts.methods.saelens import load_saelens
from veridical.errors import FormatError, NotApplicableError
from veridical.values.sealed import put

_ARRAYS = ("encoder", "encoder_bias", "decoder", "decoder_bias", "threshold", "scale")
_PLAIN = ("activation", "active", "centred")


def save(dictionary: Dictionary, path: str | Path) -> Path:
    """Write a dictionary as one .safetensors file; its activation stands in the header."""
    held = {name: getattr(dictionary, name) for name in _ARRAYS}
    arrays = {name: tensor.detach().contiguous() for name, tensor in held.items() if tensor is not None}
    about = json.dumps({name: getattr(dictionary, name) for name in _PLAIN})
    return put(path, to_bytes(arrays, {"dictionary": about}), private=False)


def load(path: str | Path) -> Dictionary | MatchingPursuit:
    """Read a dictionary: a file that `save` wrote, or a folder that SAELens wrote.

    A plain .safetensors file of arrays `encoder` (atoms, D), `encoder_bias`, `decoder` (atoms, D) and
    `decoder_bias` is read too, as a ReLU dictionary, or a JumpReLU one where it holds a `threshold`.
    """
    place = Path(path)
    if place.is_dir():
        return load_saelens(place)
    if not place.is_file():
        raise FormatError(f"{place} is neither a file nor a folder")
    with safe_open(place, "pt") as held:
        arrays: dict[str, Tensor] = {name: held.get_tensor(name) for name in held.keys()}  # noqa: SIM118
        about = json.loads((held.metadata() or {}).get("dictionary", "{}"))
    missing = [name for name in _ARRAYS[:4] if name not in arrays]
    unknown = sorted(set(arrays) - set(_ARRAYS)) + sorted(set(about) - set(_PLAIN))
    if missing or unknown:
        raise FormatError(
            f"{place} is no dictionary: it lacks {', '.join(missing) or 'nothing'} and holds "
            f"{', '.join(unknown) or 'nothing'} besides; expected {', '.join(_ARRAYS[:4])}"
        )
    usual = {"activation": "jumprelu" if "threshold" in arrays else "relu"}
    parts: dict[str, Any] = {**arrays, **usual, **about}
    found = Dictionary(**parts)
    width, dimension = found.decoder.shape
    shapes = {"encoder": (width, dimension), "encoder_bias": (width,), "decoder_bias": (dimension,)}
    for name, shape in (shapes | {"threshold": (width,), "scale": (width,)}).items():
        if name in arrays and arrays[name].shape != shape:
            raise FormatError(f"{place}: {name} has shape {tuple(arrays[name].shape)}, expected {shape}")
    return found


def from_overcomplete(module: nn.Module) -> Dictionary:
    """Read a trained module of the package overcomplete: SAE, TopKSAE, BatchTopKSAE or JumpSAE.

    Its encoder must be one linear layer, with or without batch normalisation, which is folded into it.
    """
    own: Any = module
    if own.training:
        raise NotApplicableError("a module that is being trained changes when it is read: call .eval() first")
    linear = [m for m in own.encoder.modules() if isinstance(m, nn.Linear)]
    norms = [m for m in own.encoder.modules() if isinstance(m, nn.BatchNorm1d)]
    known = (nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Identity, nn.ModuleList, nn.Sequential)
    leaves = [m for m in own.encoder.modules() if not list(m.children())]
    other = {type(m).__name__ for m in leaves if not isinstance(m, known)}
    if len(linear) != 1 or len(norms) > 1 or other:
        raise NotApplicableError(
            f"the encoder has {len(linear)} linear layers, {len(norms)} norms and {sorted(other)} besides; "
            "one linear layer, perhaps with batch normalisation, can be read"
        )
    with torch.no_grad():
        encoder = linear[0].weight.clone()
        bias = encoder.new_zeros(len(encoder)) if linear[0].bias is None else linear[0].bias.clone()
        for norm in norms:
            assert norm.running_var is not None
            assert norm.running_mean is not None
            stretch = torch.rsqrt(norm.running_var + norm.eps) * (1 if norm.weight is None else norm.weight)
            encoder, bias = encoder * stretch[:, None], (bias - norm.running_mean) * stretch
            bias = bias if norm.bias is None else bias + norm.bias
        atoms = own.get_dictionary().detach().clone()
        threshold, active, activation = None, None, "relu"
        if hasattr(own, "thresholds"):
            activation, threshold = "jumprelu", own.thresholds.exp()
        elif hasattr(own, "threshold_momentum"):
            if own.running_threshold is None:
                raise NotApplicableError("a BatchTopKSAE has no threshold before it was trained")
            activation, threshold = (
                "jumprelu",
                torch.as_tensor(own.running_threshold).expand(len(atoms)).clone(),
            )
        elif hasattr(own, "top_k"):
            activation, active = "topk", int(own.top_k)
    if threshold is not None:
        # overcomplete keeps what reaches the threshold, a JumpReLU what exceeds it
        threshold = torch.nextafter(threshold, torch.zeros_like(threshold))
    centre = atoms.new_zeros(atoms.shape[1])
    return Dictionary(encoder, bias, atoms, centre, activation, active, threshold, False)  # type: ignore[arg-type]
