"""Heads that read a flattened map: concepts found at positions, weighed as the head weighs each position."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from veridical.concepts.concepts import Concepts, Projection
from veridical.concepts.embeddings import Embeddings, Head
from veridical.errors import ShapeError

_CANCELS = 0.05
"""Below this share of its absolute sum, a sum over positions is a matter of what cancels."""


@dataclass(frozen=True, eq=False)
class AtPositions:
    """Reads a flattened map (N, D * J) position by position: codes (N, G, J * K), positions first."""

    inner: Projection
    positions: int

    def codes(self, h: Tensor) -> Tensor:
        each = unfold(h, self.positions)
        codes = self.inner.codes(each.reshape(-1, each.shape[-1]))
        codes = codes.reshape(len(h), self.positions, *codes.shape[1:])
        return codes.transpose(1, 2).flatten(2)


def unfold(flat: Tensor, positions: int) -> Tensor:
    """The vector at each position (..., J, D) of flattened maps (..., D * J), whose channels come first."""
    return flat.unflatten(-1, (-1, positions)).transpose(-1, -2)


def unflatten(embeddings: Embeddings, head: Head, channels: int) -> tuple[Embeddings, Head]:
    """What concepts are fitted on: the vector at every position, and the head summed over positions.

    `sum_j f_ij` is what the head answers to a map that is the same everywhere. The model's own outputs stay.

    Parameters
    ----------
    embeddings, head
        Of a head that reads a flattened map.
    channels
        Channels of the map, which come first.

    Returns
    -------
    tuple of Embeddings and Head
        Vectors (N, positions, channels) and the head over channels.
    """
    positions = _positions(head, channels)
    values = unfold(embeddings.values, positions)
    summed = unfold(head.weight, positions).sum(1)
    return replace(embeddings, values=values, kind="positions"), replace(head, weight=summed)


def at_positions(concepts: Concepts, head: Head, channels: int) -> Concepts:
    """Concepts of single positions as an explanation of a head over the flattened map (eq. 9 and 10).

    Each concept is read at every position, and its importance is shared out as the head weighs positions:
    `y_i = sum_j sum_k alpha_ik w_ijk P(h_j; V_i)_k + b_i` with `w_ijk = f_ij . v_ik / sum_j f_ij . v_ik`.
    Importances `alpha_ik = sum_j f_ij . v_ik` give back `f_ij . v_ik`; equal positions give the mean. Where
    the head's weights cancel over positions (their sum is below a twentieth of their sizes) there are no
    shares to follow: other importances are then spread evenly, and a note counts them.

    Parameters
    ----------
    concepts
        Found at positions (`unflatten`).
    head
        The head over the flattened map.
    channels
        Channels of the map.

    Returns
    -------
    Concepts
        Of positions x concepts.
    """
    positions = _positions(head, channels)
    groups, count, width = concepts.vectors.shape
    if width != channels:
        raise ShapeError(f"concepts have {width} dimensions, the map has {channels} channels")
    weight = unfold(head.weight, positions)
    own = torch.einsum("cjd,ckd->cjk", weight, concepts.vectors.expand(head.n_outputs, -1, -1))
    total, size = own.sum(1, keepdim=True), own.abs().sum(1, keepdim=True)
    given = concepts.importances[:, None]
    cancels = total.abs() <= _CANCELS * size
    shares = torch.where(cancels, 1 / positions, own / torch.where(cancels, 1.0, total))
    importances = torch.where((given - total).abs() <= 1e-9 * size, own, given * shares)
    spread = int((cancels & ((given - total).abs() > 1e-9 * size)).sum())
    eye = torch.eye(positions, dtype=concepts.vectors.dtype, device=concepts.vectors.device)
    vectors = torch.einsum("gkd,jl->gjkdl", concepts.vectors, eye)
    vectors = vectors.reshape(groups, positions * count, channels * positions)
    centre = concepts.centre
    if centre is not None:
        centre = centre[:, :, None].expand(-1, -1, positions).flatten(1)
    notes = [*concepts.notes, f"read at {positions} positions of a flattened map"]
    if spread:
        notes.append(f"{spread} importances are spread evenly: the head's weights of the concept cancel")
    return Concepts(
        concepts.method,
        vectors,
        importances.flatten(1),
        AtPositions(concepts.projection, positions),
        concepts.offset,
        centre,
        concepts.flags,
        tuple(notes),
    )


def _positions(head: Head, channels: int) -> int:
    if channels < 1 or head.dimension % channels:
        raise ShapeError(
            f"a flattened map of {head.dimension} numbers does not hold {channels} channels at every position"
        )
    return head.dimension // channels
