"""Sparse dictionaries: codes, atoms, and files of our own, of SAELens and of overcomplete."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from veridical.concepts.concepts import Concepts
from veridical.concepts.embeddings import Head
from veridical.core.files import write_file
from veridical.errors import FormatError, InputError, NotApplicableError

Activation = Literal["topk", "abstopk", "relu", "tanh_relu", "jumprelu"]


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
    """What becomes of the encoder's answers; see `activate`."""
    active: int | None = None
    """Atoms that TopK keeps; None where the data decide."""
    threshold: Tensor | None = None
    """What an atom must exceed under JumpReLU (atoms,)."""
    centred: bool = True
    """Whether the encoder takes the decoder's bias out of h first."""
    scale: Tensor | None = None
    """s (atoms,): what codes are multiplied by at last; None for 1."""

    def codes(self, h: Tensor) -> Tensor:
        """Activations (N, 1, atoms)."""
        h = h.to(self.encoder)
        before = (h - self.decoder_bias if self.centred else h) @ self.encoder.T + self.encoder_bias
        codes = self.activate(before)
        return (codes if self.scale is None else codes * self.scale)[:, None]

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
        """The same function with atoms of length 1, in float64: codes grow by what atoms shrink."""
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
        return _as_concepts(self.unit(), head, name)


@dataclass(frozen=True, eq=False)
class MatchingPursuit:
    """Codes of a dictionary without an encoder: `p_k += (r . d_k)+` for the atom of the largest product.

    Atoms keep the length they have: at another length the pursuit would be another one.
    """

    decoder: Tensor
    """Atoms (K, D)."""
    decoder_bias: Tensor
    """b_d (D,)."""
    residual_threshold: float = 0.0
    """A row is done once what is left of it is shorter; 0 sets no such bound."""
    steps: int = 64
    """Atoms that are chosen at most."""
    stop_when_repeated: bool = True
    """Whether a row is done once a step brings no new atom."""
    centred: bool = True
    """Whether the bias is taken out of h first."""
    active: None = None
    """How many atoms are active is for the data to decide."""

    def codes(self, h: Tensor) -> Tensor:
        """Codes (N, 1, atoms)."""
        left = h.to(self.decoder) - (self.decoder_bias if self.centred else 0.0)
        codes = left.new_zeros(len(left), len(self.decoder))
        open_rows = torch.ones(len(left), 1, dtype=torch.bool, device=left.device)
        for _ in range(self.steps):
            at = (left @ self.decoder.T).clamp(min=0).argmax(1, keepdim=True)
            atom = self.decoder[at[:, 0]]
            value = (left * atom).sum(-1, keepdim=True).clamp(min=0) * open_rows
            before = codes != 0
            codes = codes.scatter_add(1, at, value)
            left = left - value * atom
            if self.stop_when_repeated:
                open_rows &= ((codes != 0) != before).any(1, keepdim=True)
            if self.residual_threshold > 0:
                open_rows &= left.norm(dim=-1, keepdim=True) >= self.residual_threshold
            if not bool(open_rows.any()):
                break
        return codes[:, None]

    def concepts(self, head: Head, name: str = "sae") -> Concepts:
        """The dictionary as an explanation: importances `f_i . d_k`, and `f_i . b_d` joins the bias."""
        own = replace(self, decoder=self.decoder.double(), decoder_bias=self.decoder_bias.double())
        return _as_concepts(own, head, name)


def _as_concepts(own: Dictionary | MatchingPursuit, head: Head, name: str) -> Concepts:
    atoms, centre = own.decoder, own.decoder_bias
    if atoms.shape[1] != head.dimension:
        raise InputError(f"dictionary atoms have {atoms.shape[1]} dimensions, the head has {head.dimension}")
    return Concepts(name, atoms[None], head.weight @ atoms.T, own, head.weight @ centre, centre[None])


_ARRAYS = ("encoder", "encoder_bias", "decoder", "decoder_bias", "threshold", "scale")
_PLAIN = ("activation", "active", "centred")


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
    arrays = {name: tensor.detach().contiguous() for name, tensor in held.items() if tensor is not None}
    about = json.dumps({name: getattr(dictionary, name) for name in _PLAIN})
    return write_file(path, to_bytes(arrays, {"dictionary": about}), private=False)


def load(path: str | Path) -> Dictionary | MatchingPursuit:
    """Read a dictionary: a file that `save` wrote, or a folder that SAELens wrote.

    A plain .safetensors file of arrays `encoder` (atoms, D), `encoder_bias`, `decoder` (atoms, D) and
    `decoder_bias` is read too, as a ReLU dictionary, or a JumpReLU one where it holds a `threshold`.

    Parameters
    ----------
    path
        A file or a folder.

    Returns
    -------
    Dictionary or MatchingPursuit
        Ready for `.concepts(head)` and for `vd.dictionaries`.

    Raises
    ------
    FormatError
        It is no dictionary, or of an architecture that cannot be read.
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

    Parameters
    ----------
    module : nn.Module
        The trained module, in evaluation mode.

    Returns
    -------
    Dictionary
        The same dictionary.

    Raises
    ------
    NotApplicableError
        Where the encoder cannot be read.
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
    "transcoder": "a transcoder answers another layer than it reads",
    "skip_transcoder": "a transcoder answers another layer than it reads",
    "jumprelu_transcoder": "a transcoder answers another layer than it reads",
    "jumprelu_skip_transcoder": "a transcoder answers another layer than it reads",
    "temporal": "its codes depend on the texts before, not on one embedding",
    "batchtopk": "its codes depend on the batch in training; write it with SAELens' save_inference_model",
    "matryoshka_batchtopk": "its codes depend on the batch in training; write it with SAELens' "
    "save_inference_model",
}
"""Architectures that are no dictionary of one layer by themselves, with why."""

_ACTIVATIONS: dict[str, Activation] = {"relu": "relu", "topk": "topk", "tanh-relu": "tanh_relu"}
"""Activations that a standard dictionary may name; releases before 6 wrote TopK so."""


def load_saelens(folder: str | Path) -> Dictionary | MatchingPursuit:
    """Read a dictionary that SAELens wrote; `.concepts(head)` makes an explanation of it.

    Standard, TopK, AbsTopK, JumpReLU (which BatchTopK and Matryoshka are saved as), gated and
    matching-pursuit ones can be read; transcoders, which answer another layer than they read, are refused.
    Arrays are `W_enc` (D, atoms), `b_enc` (atoms,), `W_dec` (atoms, D), `b_dec` (D,), and others by
    architecture.

    Parameters
    ----------
    folder
        With `cfg.json` and `sae_weights.safetensors`.

    Returns
    -------
    Dictionary or MatchingPursuit
        The same function of embeddings as SAELens'.

    Raises
    ------
    FormatError
        A file or array is missing, or the architecture cannot be read: the message says why.
    """
    place = Path(folder)
    for name in ("cfg.json", "sae_weights.safetensors"):
        if not (place / name).is_file():
            raise FormatError(f"{place} holds no {name}; expected a folder that SAELens wrote")
    from safetensors.torch import load_file

    config: dict[str, Any] = json.loads((place / "cfg.json").read_text())
    tensors = load_file(place / "sae_weights.safetensors")
    architecture = str(config.get("architecture", "standard"))
    if architecture not in _NEEDED:
        why = _REFUSED.get(architecture, "which is not known here")
        raise FormatError(
            f"the dictionary's architecture is '{architecture}': {why}; {', '.join(_NEEDED)} can be read"
        )
    wanted = ("W_dec", "b_dec", *_NEEDED[architecture])
    missing = [n for n in wanted if n not in tensors]
    if missing:
        raise FormatError(f"{place / 'sae_weights.safetensors'} lacks {', '.join(missing)}")
    _fold_scales(config, tensors)
    centred = bool(config.get("apply_b_dec_to_input", True))
    decoder, decoder_bias = tensors["W_dec"], tensors["b_dec"]
    if architecture == "matching_pursuit":
        return MatchingPursuit(
            decoder,
            decoder_bias if centred else decoder_bias * 0,  # it is added only where it was taken away
            float(config.get("residual_threshold", 1e-2)),
            config.get("max_iterations") or decoder.shape[1],
            bool(config.get("stop_on_duplicate_support", True)),
            centred,
        )
    encoder, bias, threshold = tensors["W_enc"].T, tensors.get("b_enc"), tensors.get("threshold")
    activation: Activation = "relu"
    if architecture == "gated":
        # open where x W + b_gate > 0: a threshold on what the magnitude's encoder answers
        stretch = tensors["r_mag"].exp()
        encoder, bias = encoder * stretch[:, None], tensors["b_mag"]
        activation, threshold = "jumprelu", bias - tensors["b_gate"] * stretch
    elif architecture == "standard":
        named = str(config.get("activation_fn_str") or config.get("activation_fn") or "relu")
        if named not in _ACTIVATIONS:
            raise FormatError(f"the activation is '{named}'; {', '.join(_ACTIVATIONS)} can be read")
        activation = _ACTIVATIONS[named]
    else:
        activation = architecture  # type: ignore[assignment]
    active = config.get("k") or (config.get("activation_fn_kwargs") or {}).get("k")
    if activation not in ("topk", "abstopk"):
        active = None
    elif active is None:
        raise FormatError(f"a {activation} dictionary must say how many atoms are active: 'k' in cfg.json")
    assert bias is not None
    if config.get("rescale_acts_by_decoder_norm") and architecture in ("topk", "abstopk"):
        # which atoms are largest is decided as if the decoder's had length 1
        length = decoder.norm(dim=-1).clamp(min=1e-30)
        encoder, bias, decoder = encoder * length[:, None], bias * length, decoder / length[:, None]
    return Dictionary(
        encoder.contiguous(),
        bias,
        decoder,
        decoder_bias,
        activation,
        None if active is None else int(active),
        threshold if activation == "jumprelu" else None,
        centred,
        _finetuned(config, tensors),
    )


def _fold_scales(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Take a fixed scale of the activations into the weights; what follows each activation is refused."""
    how = config.get("normalize_activations") or "none"
    how = "expected_average_only_in" if how is True else how  # as releases before 6 wrote it
    factor = config.get("norm_scaling_factor")
    if how == "expected_average_only_in" and factor is not None:
        tensors["W_dec"], tensors["b_dec"] = tensors["W_dec"] / factor, tensors["b_dec"] / factor
        config["residual_threshold"] = config.get("residual_threshold", 1e-2) / factor
        if "W_enc" in tensors:
            tensors["W_enc"] = tensors["W_enc"] * factor
    elif how != "none":
        raise FormatError(
            f"the dictionary expects activations normalised by '{how}'; fold the scale into its weights first"
        )
    reshaped = config.get("reshape_activations") or "none"
    if reshaped != "none":
        raise FormatError(f"the dictionary reshapes activations by '{reshaped}'; it reads no single layer")


def _finetuned(config: dict[str, Any], tensors: dict[str, Tensor]) -> Tensor | None:
    """What finetuned dictionaries of older releases multiply codes by before they decode."""
    if not config.get("finetuning_scaling_factor"):
        return None
    for name in ("finetuning_scaling_factor", "scaling_factor"):
        if name in tensors:
            return tensors[name]
    raise FormatError("the dictionary is finetuned and its weights lack finetuning_scaling_factor")
