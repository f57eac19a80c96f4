"""A dictionary: an encoder that gives few atoms to every embedding, and a decoder that puts them together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from veridical.concepts.concepts import Concepts
from veridical.concepts.head import Head
from veridical.errors import InputError

Activation = Literal["topk", "abstopk", "relu", "tanh_relu", "jumprelu"]


@dataclass(frozen=True, eq=False)
class Dictionary:
    """Encoder and decoder: `p = s act(W_e (h - b_d) + b_e)`, `h ~ W_d^T p + b_d`; atoms are its rows.

    It is a projection: its codes are non-linear in h, so it is asked embedding by embedding.
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
        own = self.unit()
        if own.decoder.shape[1] != head.dimension:
            raise InputError(
                f"dictionary atoms have {own.decoder.shape[1]} dimensions, the head has {head.dimension}"
            )
        importances = head.weight @ own.decoder.T
        centre = own.decoder_bias[None]
        offset = head.weight @ own.decoder_bias
        return Concepts(name, own.decoder[None], importances, own, offset, centre)
