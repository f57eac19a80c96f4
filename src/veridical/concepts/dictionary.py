"""Sparse dictionaries: an encoder, or a pursuit, gives few atoms to every embedding."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from veridical.concepts.concepts import Concepts
from veridical.concepts.embeddings import Head
from veridical.errors import InputError

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
        """TopK keeps the largest `active` (and only what is positive), AbsTopK those of the largest size with
        their sign, ReLU what is positive (tanh_relu its tanh), JumpReLU what exceeds the threshold too."""
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
