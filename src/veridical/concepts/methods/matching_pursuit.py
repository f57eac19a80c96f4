"""Dictionaries read by matching pursuit: the atom that explains most of what is left, again and again."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from veridical.concepts.concepts import Concepts
from veridical.concepts.head import Head


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
    """A row is done once what is left of it is shorter; 0 asks for nothing."""
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
        offset = head.weight @ own.decoder_bias
        centre = own.decoder_bias[None]
        return Concepts(name, own.decoder[None], head.weight @ own.decoder.T, own, offset, centre)
