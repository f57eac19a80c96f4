"""Dictionaries in SAELens' file layout: a folder with `cfg.json` and `sae_weights.safetensors`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from veridical.errors import FormatError
from veridical.surf.methods.sae import Activation, Dictionary

_ARCHITECTURES: dict[str, Activation] = {
    "standard": "relu",
    "topk": "topk",
    "jumprelu": "jumprelu",
}


def load_saelens(folder: str | Path) -> Dictionary:
    """Read a standard (ReLU), TopK or JumpReLU dictionary; `.concepts(head)` makes an explanation of it.

    Arrays are `W_enc` (D, atoms), `b_enc` (atoms,), `W_dec` (atoms, D), `b_dec` (D,), and for JumpReLU
    `threshold` (atoms,).
    """
    place = Path(folder)
    for name in ("cfg.json", "sae_weights.safetensors"):
        if not (place / name).is_file():
            raise FormatError(f"{place} holds no {name}; expected a folder that SAELens wrote")
    from safetensors.torch import load_file

    config: dict[str, Any] = json.loads((place / "cfg.json").read_text())
    tensors = load_file(place / "sae_weights.safetensors")
    architecture = str(config.get("architecture", "standard"))
    if architecture == "standard" and config.get("activation_fn_str", config.get("activation_fn")) == "topk":
        architecture = "topk"  # as older releases wrote it
    if architecture not in _ARCHITECTURES:
        raise FormatError(
            f"the dictionary's architecture is '{architecture}'; standard, topk and jumprelu can be read"
        )
    missing = [n for n in ("W_enc", "b_enc", "W_dec", "b_dec") if n not in tensors]
    if architecture == "jumprelu" and "threshold" not in tensors:
        missing.append("threshold")
    if missing:
        raise FormatError(f"{place / 'sae_weights.safetensors'} lacks {', '.join(missing)}")
    if config.get("normalize_activations", "none") not in ("none", None):
        raise FormatError(
            f"the dictionary expects activations normalised by '{config['normalize_activations']}'; fold the "
            "scale into its weights first"
        )
    active = config.get("k", config.get("activation_fn_kwargs", {}).get("k"))
    if architecture == "topk" and active is None:
        raise FormatError("a topk dictionary must say how many atoms are active: 'k' in cfg.json")
    return Dictionary(
        tensors["W_enc"].T.contiguous(),
        tensors["b_enc"],
        tensors["W_dec"],
        tensors["b_dec"],
        _ARCHITECTURES[architecture],
        int(active) if active is not None else None,
        tensors.get("threshold"),
        bool(config.get("apply_b_dec_to_input", True)),
    )
