"""Sparse dictionaries: codes, atoms, and files of our own and of the packages that train them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from veridical.concepts.concepts import Concepts
from veridical.concepts.embeddings import Head
from veridical.core.files import write_file
from veridical.data.files import read_arrays
from veridical.errors import FormatError, InputError, VeridicalError

Activation = Literal["topk", "abstopk", "relu", "tanh_relu", "jumprelu", "pursuit"]


@dataclass(frozen=True, eq=False)
class Dictionary:
    """Encoder and decoder: `p = s act(W_e (h - b_d) + b_e)`, `h ~ W_d^T p + b_d`; atoms are its rows.

    It is a projection: its codes are non-linear in h, so it is evaluated embedding by embedding.
    """

    encoder: Tensor
    """W_e (atoms, D)."""
    encoder_bias: Tensor
    """b_e (atoms,)."""
    decoder: Tensor
    """W_d (atoms, D)."""
    decoder_bias: Tensor
    """b_d (D,)."""
    activation: Activation = "relu"
    """What becomes of the encoder's outputs; see `activate`."""
    active: int | None = None
    """Atoms that TopK keeps; None where the data decide."""
    threshold: Tensor | None = None
    """What an atom must exceed under JumpReLU (atoms,)."""
    centred: bool = True
    """Whether the encoder takes the decoder's bias out of h first."""
    scale: Tensor | None = None
    """s (atoms,): what codes are multiplied by at last; None for 1."""
    steps: int = 0
    """Atoms that a pursuit, which has no encoder, picks at most."""
    left: float = 0.0
    """A pursuit is done with a row once what is left of it is shorter; 0 sets no such bound."""
    repeats: bool = False
    """Whether a pursuit goes on after a step that brought no new atom."""
    hook: str | None = None
    """The layer it was trained on, as its file names it; a bench of another layer is refused."""
    model: str | None = None
    """The model it was trained on, as its file names it."""

    def codes(self, h: Tensor) -> Tensor:
        """Activations (N, 1, atoms)."""
        h = h.to(self.encoder)
        h = h - self.decoder_bias if self.centred else h
        pursued = self.activation == "pursuit"
        codes = self._pursue(h) if pursued else self.activate(h @ self.encoder.T + self.encoder_bias)
        return (codes if self.scale is None else codes * self.scale)[:, None]

    def _pursue(self, left: Tensor) -> Tensor:
        """Matching pursuit: `p_k += (r . d_k)+` for the atom with the largest product, step by step."""
        codes = left.new_zeros(len(left), len(self.decoder))
        going = torch.ones(len(left), 1, dtype=torch.bool, device=left.device)
        for _ in range(self.steps):
            value, at = (left @ self.decoder.T).clamp(min=0).max(1, keepdim=True)
            value, new = value * going, codes.gather(1, at) == 0
            codes.scatter_add_(1, at, value)
            left = left - value * self.decoder[at[:, 0]]
            going &= (value > 0) & (new | self.repeats)
            if self.left > 0:
                going &= left.norm(dim=-1, keepdim=True) >= self.left
            if not bool(going.any()):
                break
        return codes

    def encode(self, h: Tensor) -> Tensor:
        """Activations (..., atoms) of embeddings (..., D), whatever stands in front."""
        return self.codes(h.reshape(-1, h.shape[-1]))[:, 0].reshape(*h.shape[:-1], -1)

    def decode(self, codes: Tensor) -> Tensor:
        """Embeddings (..., D) put together from activations (..., atoms)."""
        return codes.to(self.decoder) @ self.decoder + self.decoder_bias

    def activate(self, before: Tensor) -> Tensor:
        """Activations (..., atoms) of what the encoder computed before its nonlinearity.

        TopK keeps the largest `active` (and only what is positive), AbsTopK those of the largest size with
        their sign, ReLU what is positive (tanh_relu its tanh), JumpReLU what exceeds the threshold too.
        """
        if self.activation == "jumprelu" and self.threshold is not None:
            return before.clamp(min=0) * (before > self.threshold)
        if self.activation == "tanh_relu":
            return before.clamp(min=0).tanh()
        positive = before if self.activation == "abstopk" else before.clamp(min=0)
        if self.activation == "relu" or self.active is None:
            return positive
        kept = positive.abs().topk(min(self.active, positive.shape[-1]), -1).indices
        return torch.zeros_like(positive).scatter(-1, kept, positive.gather(-1, kept))

    def to(self, device: torch.device | str) -> Dictionary:
        """The same dictionary on another device."""
        held = {name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **held)  # type: ignore[arg-type]

    def unit(self) -> Dictionary:
        """The same function with atoms of length 1, in float64: codes grow by what atoms shrink.

        Atoms of a pursuit keep their length: at another one the pursuit would be another.
        """
        if self.activation == "pursuit":
            held = {name: getattr(self, name).double() for name in _ARRAYS[:4]}
            return replace(self, **held)
        length = self.decoder.double().norm(dim=-1).clamp(min=1e-300)
        return replace(
            self,
            encoder=self.encoder.double(),
            encoder_bias=self.encoder_bias.double(),
            decoder=self.decoder.double() / length[:, None],
            decoder_bias=self.decoder_bias.double(),
            threshold=None if self.threshold is None else self.threshold.double(),
            scale=length if self.scale is None else self.scale.double() * length,
        )

    def concepts(self, head: Head, name: str = "sae") -> Concepts:
        """The dictionary as an explanation: importances `f_i . d_k`, and `f_i . b_d` joins the bias."""
        own = self.unit()
        atoms, centre = own.decoder, own.decoder_bias
        if atoms.shape[1] != head.dimension:
            raise InputError(f"atoms have {atoms.shape[1]} dimensions, the head has {head.dimension}")
        return Concepts(name, atoms[None], head.weight @ atoms.T, own, head.weight @ centre, centre[None])


_ARRAYS = ("encoder", "encoder_bias", "decoder", "decoder_bias", "threshold", "scale")
_PLAIN = ("activation", "active", "centred", "steps", "left", "repeats", "hook", "model")


def save(dictionary: Dictionary, path: str | Path) -> Path:
    """Write a dictionary as one .safetensors file; its activation stands in the header.

    Parameters
    ----------
    dictionary
        What `train` gave, or `load`.
    path
        The file.

    Returns
    -------
    Path
        Where it was written.
    """
    held = {name: getattr(dictionary, name) for name in _ARRAYS}
    arrays = {n: t.detach().contiguous().clone() for n, t in held.items() if t is not None}
    about = json.dumps({name: getattr(dictionary, name) for name in _PLAIN})
    return write_file(path, to_bytes(arrays, {"dictionary": about}), private=False)


def load(path: str | Path) -> Dictionary:
    """Read a dictionary from disk, whoever wrote it.

    - a .safetensors file that `save` wrote, or one of plain arrays `encoder` (atoms, D), `encoder_bias`,
      `decoder` (atoms, D) and `decoder_bias`: ReLU, or JumpReLU where it holds a `threshold`
    - a folder of SAELens (`cfg.json`, `sae_weights.safetensors`): standard, TopK, AbsTopK, JumpReLU (which
      BatchTopK and Matryoshka are saved as), gated and matching pursuit
    - a folder of sparsify (`cfg.json`, `sae.safetensors`) or of dictionary_learning (`config.json`, `ae.pt`)
    - Gemma Scope's `params.npz`, or the folder that holds it

    Layer and model, where a file names them, are kept as `hook` and `model`. Transcoders, which give another
    layer than they read, are refused.

    Parameters
    ----------
    path
        A file or a folder.

    Returns
    -------
    Dictionary
        Ready for `.concepts(head)` and for `vd.dictionaries`.

    Raises
    ------
    FormatError
        It is no dictionary, or of an architecture that cannot be read.
    """
    place = Path(path)
    try:
        return _load(place)
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, VeridicalError):
            raise
        raise FormatError(f"{place}: its arrays and settings do not belong together: {error}") from error


def _load(place: Path) -> Dictionary:
    if place.is_dir():
        known = {"sae_weights.safetensors", "sae.safetensors", "ae.pt", "params.npz"}
        there = sorted(known & {file.name for file in place.iterdir()})
        if not there:
            raise FormatError(
                f"{place} holds none of {', '.join(sorted(known))}: it is no dictionary's folder"
            )
        place = place / there[0]
    if not place.is_file():
        raise FormatError(f"{place} is neither a file nor a folder")
    if place.name == "sae_weights.safetensors":
        config = _config(place.parent / "cfg.json")
        return _read({**(config.get("metadata") or {}), **config}, _arrays(place), place)
    if place.name == "sae.safetensors":
        return _sparsify(place)
    if place.suffix == ".npz":
        layer = re.search(r"layer_\d+", str(place.resolve().parent))
        hook = {} if layer is None else {"hook_name": layer[0]}
        config = {"architecture": "jumprelu", "apply_b_dec_to_input": False, **hook}
        return _read(config, _arrays(place), place)
    if place.suffix in (".pt", ".pth", ".bin"):
        return _dictionary_learning(place)
    if place.suffix != ".safetensors":
        raise FormatError(f"{place.name} is no .safetensors, .npz or .pt file, nor a dictionary's folder")
    arrays = _arrays(place)
    with safe_open(place, "pt") as held:
        about = json.loads((held.metadata() or {}).get("dictionary", "{}"))
    missing = [name for name in _ARRAYS[:4] if name not in arrays]
    unknown = sorted(set(arrays) - set(_ARRAYS)) + sorted(set(about) - set(_PLAIN))
    if missing or unknown:
        lacks, holds = (", ".join(names) or "nothing" for names in (missing, unknown))
        raise FormatError(f"{place} is no dictionary: it lacks {lacks} and holds {holds} besides")
    usual = {"activation": "jumprelu" if "threshold" in arrays else "relu"}
    parts: dict[str, Any] = {**arrays, **usual, **about}
    return _checked(Dictionary(**parts), place)


def _arrays(file: Path) -> dict[str, Tensor]:
    """The tensors in a file; nothing in it is run."""
    if file.suffix in (".npz", ".safetensors"):
        return {name: torch.as_tensor(array) for name, array in read_arrays(file).items()}
    held = read_weights(file)
    if not all(isinstance(value, Tensor) for value in held.values()):
        raise FormatError(f"{file.name} holds no state_dict of tensors")
    return held


def read_weights(file: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """What torch saved by name; nothing in it is run."""
    try:
        held = torch.load(file, map_location=device, weights_only=True)
    except Exception as error:  # damaged bytes make the formats below torch's raise anything
        raise FormatError(f"{file.name} is no file of weights that torch reads: {error}") from error
    if not isinstance(held, dict):
        raise FormatError(f"{file.name} holds nothing by name")
    return held


def _config(file: Path) -> dict[str, Any]:
    """The settings beside the weights."""
    if not file.is_file():
        raise FormatError(f"{file.parent} holds no {file.name} beside the weights")
    try:
        held = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise FormatError(f"{file} is no JSON: {error}") from error
    if not isinstance(held, dict):
        raise FormatError(f"{file} holds no settings by name")
    return held


def _checked(found: Dictionary, place: Path) -> Dictionary:
    if found.decoder.dim() != 2:
        raise FormatError(
            f"{place}: atoms have shape {tuple(found.decoder.shape)}, expected (atoms, dimensions)"
        )
    width, dimension = found.decoder.shape
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("encoder", "decoder"), (width, dimension))
    shapes |= dict.fromkeys(("encoder_bias", "threshold", "scale"), (width,))
    for name, shape in (shapes | {"decoder_bias": (dimension,)}).items():
        held = getattr(found, name)
        if held is not None and held.shape != shape:
            raise FormatError(f"{place}: {name} has shape {tuple(held.shape)}, expected {shape}")
        if held is not None and not (held.is_floating_point() and bool(torch.isfinite(held).all())):
            raise FormatError(f"{place}: {name} holds something else than finite real numbers")
    if found.active is not None and not 1 <= found.active <= width:
        raise FormatError(f"{place}: {found.active} atoms of {width} are said to be active")
    return found


_NEEDED = {
    "standard": ("W_enc", "b_enc"),
    "topk": ("W_enc", "b_enc"),
    "abstopk": ("W_enc", "b_enc"),
    "jumprelu": ("W_enc", "b_enc", "threshold"),
    "gated": ("W_enc", "b_gate", "b_mag", "r_mag"),
    "matching_pursuit": (),
}
"""Architectures that can be read, with the arrays each needs beside `W_dec` and `b_dec`."""

_REFUSED = {
    "transcoder": "a transcoder gives another layer than it reads",
    "temporal": "its codes depend on the texts before, not on one embedding",
    "batchtopk": "its codes depend on the batch in training; write it with SAELens' save_inference_model",
}
"""Architectures (ends of their names) that are no encoder and decoder of one layer, with why."""


def _read(config: dict[str, Any], tensors: dict[str, Tensor], place: Path) -> Dictionary:
    """The dictionary of arrays and settings under SAELens' names."""
    architecture = str(config.get("architecture", "standard"))
    if architecture not in _NEEDED:
        known = (why for end, why in _REFUSED.items() if architecture.endswith(end))
        raise FormatError(
            f"the dictionary's architecture is '{architecture}': {next(known, 'which is not known here')}; "
            f"{', '.join(_NEEDED)} can be read"
        )
    missing = [n for n in ("W_dec", "b_dec", *_NEEDED[architecture]) if n not in tensors]
    if missing:
        raise FormatError(f"{place} lacks {', '.join(missing)}")
    _fold_scales(config, tensors)
    decoder, centre = tensors["W_dec"], tensors["b_dec"]
    centred = bool(config.get("apply_b_dec_to_input", True))
    origin: dict[str, Any] = {"hook": config.get("hook_name"), "model": config.get("model_name")}
    if architecture == "matching_pursuit":
        pursuit: dict[str, Any] = {
            "steps": int(config.get("max_iterations") or decoder.shape[1]),
            "left": float(config.get("residual_threshold", 1e-2)),
            "repeats": not config.get("stop_on_duplicate_support", True),
        }
        # the bias is added only where it was taken away
        centre, nothing = centre if centred else centre * 0, decoder.new_zeros(len(decoder))
        found = Dictionary(decoder.clone(), nothing, decoder, centre, "pursuit", centred=centred)
        return _checked(replace(found, **pursuit, **origin), place)
    encoder, bias, threshold = tensors["W_enc"].T, tensors.get("b_enc"), None
    activation: Any = architecture
    active = config.get("k") or (config.get("activation_fn_kwargs") or {}).get("k")
    if architecture == "gated":
        # open where x W + b_gate > 0: a threshold on what the magnitude's encoder gives
        stretch = tensors["r_mag"].exp()
        encoder, bias = encoder * stretch[:, None], tensors["b_mag"]
        activation, threshold = "jumprelu", bias - tensors["b_gate"] * stretch
    elif architecture == "jumprelu":
        threshold = tensors["threshold"].expand(len(encoder)).clone()
    elif architecture == "standard":
        named = str(config.get("activation_fn_str") or config.get("activation_fn") or "relu")
        activation = named.replace("-", "_")
        if activation not in ("relu", "topk", "tanh_relu"):  # releases before 6 wrote TopK so
            raise FormatError(f"the activation is '{named}'; relu, topk and tanh-relu can be read")
    if activation not in ("topk", "abstopk"):
        active = None
    elif active is None:
        raise FormatError(f"a {activation} dictionary must say how many atoms are active: 'k' in cfg.json")
    assert bias is not None
    length = decoder.norm(dim=-1).clamp(min=1e-30)
    if config.get("rescale_acts_by_decoder_norm") and architecture in ("topk", "abstopk"):
        # which atoms are largest is decided as if the decoder's had length 1
        encoder, bias, decoder = encoder * length[:, None], bias * length, decoder / length[:, None]
    scale = None
    if config.get("codes_of_unit_atoms"):
        scale, decoder = length, decoder / length[:, None]
    parts = (encoder.contiguous(), bias, decoder, centre, activation)
    active = None if active is None else int(active)
    return _checked(Dictionary(*parts, active, threshold, centred, scale, **origin), place)


def _sparsify(file: Path) -> Dictionary:
    """TopK of EleutherAI's sparsify, under SAELens' names; its folder is called as the layer is."""
    config, held = _config(file.parent / "cfg.json"), _arrays(file)
    if config.get("transcode") or config.get("skip_connection") or "W_skip" in held:
        raise FormatError(f"{file.parent} is a transcoder, which gives another layer than it reads")
    if config.get("activation", "topk") != "topk":
        raise FormatError(f"{file.parent}: the activation is '{config['activation']}'; topk can be read")
    own = {"architecture": "abstopk" if config.get("signed") else "topk", "k": config.get("k")}
    return _read({**own, "hook_name": file.parent.resolve().name}, _renamed(held), file)


_THEIRS = {
    "encoder.weight": "W_enc",
    "encoder.bias": "b_enc",
    "decoder.weight": "W_dec",
    "bias": "b_dec",
    "decoder_bias": "b_dec",
    "decoder.bias": "b_dec",
    "gate_bias": "b_gate",
    "mag_bias": "b_mag",
}
"""SAELens' names of what linear layers and their kin hold elsewhere."""


def _renamed(held: dict[str, Tensor]) -> dict[str, Tensor]:
    """Arrays under SAELens' names; matrices of linear layers lie the other way."""
    return {_THEIRS.get(n, n): t.T if n.endswith(".weight") else t for n, t in held.items()}


def _dictionary_learning(file: Path) -> Dictionary:
    """AutoEncoder, TopK, BatchTopK, Matryoshka, gated and JumpReLU of dictionary_learning."""
    held = _arrays(file)
    beside = file.parent / "config.json"
    about = (_config(beside) if beside.is_file() else {}).get("trainer") or {}
    kind, own = str(about.get("dict_class", "")), _renamed(held)
    plain = "encoder.weight" not in held  # W_enc itself: JumpReLU, and Matryoshka, which has k too
    if "threshold" in own and "k" in own and not plain and not kind:
        raise FormatError(
            f"{file} is TopK or BatchTopK, which a config.json beside it would say (trainer: dict_class)"
        )
    if "b_gate" in own:
        architecture = "gated"
    elif "threshold" in own and (plain or "BatchTopK" in kind):
        architecture = "jumprelu"
    else:
        architecture = "topk" if "k" in own else "standard"
    unit = architecture == "gated" or (plain and "k" not in own)
    named = {"hook_name": about.get("submodule_name"), "model_name": about.get("lm_name")}
    config = {
        "architecture": architecture,
        "k": int(own["k"]) if "k" in own else None,
        "apply_b_dec_to_input": "decoder.bias" not in held and not (plain and "k" not in own),
        "codes_of_unit_atoms": unit,
    }
    return _read(config | named, own, file)


def _fold_scales(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Take a fixed scale of the activations into the weights; what changes codes otherwise is refused."""
    how = config.get("normalize_activations") or "none"
    how = "expected_average_only_in" if how is True else how  # as releases before 6 wrote it
    factor = config.get("norm_scaling_factor")
    if how == "expected_average_only_in" and factor is not None:
        for name, scale in (("W_enc", factor), ("W_dec", 1 / factor), ("b_dec", 1 / factor)):
            tensors[name] = tensors[name] * scale
    elif how != "none":
        raise FormatError(
            f"the dictionary expects activations normalised by '{how}'; fold the scale into its weights first"
        )
    reshaped = config.get("reshape_activations") or "none"
    if reshaped != "none":
        raise FormatError(f"the dictionary reshapes activations by '{reshaped}'; it reads no single layer")
    if config.get("finetuning_scaling_factor"):
        raise FormatError("the dictionary is finetuned: take its scaling factor into W_dec first")
