"""A concept explanation: for every output vectors, importances, and a way to read embeddings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor

from veridical.concepts.embeddings import Embeddings, Head
from veridical.concepts.solvers import nnls
from veridical.errors import InputError, ShapeError, warn


class Projection(Protocol):
    """Codes (N, G, K) of embeddings (N, D): G dictionaries, one per output or one for all."""

    def codes(self, h: Tensor) -> Tensor:
        """How much of each concept an embedding holds."""
        ...


@dataclass(frozen=True, eq=False)
class Linear:
    """`p_k = m_k . (h - mu)`: m is v itself, or a row of the pseudo-inverse of V."""

    rows: Tensor
    centre: Tensor | None = None

    def codes(self, h: Tensor) -> Tensor:
        groups, count, width = self.rows.shape
        found = (h.double() @ self.rows.reshape(-1, width).T).reshape(len(h), groups, count)
        if self.centre is not None:
            found = found - torch.einsum("gkd,gd->gk", self.rows, self.centre)
        return found


@dataclass(frozen=True, eq=False)
class NonNegative:
    """`p = argmin_{p >= 0} ||h - V^T p||`, solved exactly."""

    vectors: Tensor

    def codes(self, h: Tensor) -> Tensor:
        groups, count, width = self.vectors.shape
        gram = self.vectors @ self.vectors.mT
        seen = (h.double() @ self.vectors.reshape(-1, width).T).reshape(len(h), groups, count)
        return nnls(gram, seen.transpose(0, 1)).transpose(0, 1)


def dual(vectors: Tensor) -> Tensor:
    """Rows of the pseudo-inverse: `dual(V) h` are the least-squares coordinates of h in V (G, K, D).

    Equals V itself when its rows are orthonormal, and shares the weight between duplicates otherwise.
    """
    return torch.linalg.pinv(vectors.double(), rtol=1e-10).mT


Reading = Literal["project", "coordinates", "nonnegative"]


def read_by(reading: Reading, vectors: Tensor, centre: Tensor | None = None) -> Projection:
    """What reads concepts along these vectors (G, K, D)."""
    if reading == "nonnegative":
        return NonNegative(vectors)
    return Linear(vectors if reading == "project" else dual(vectors), centre)


@dataclass(frozen=True, eq=False)
class Concepts:
    """What a concept method found.

    `vectors` (G, K, D) has one dictionary per output (G = C) or one for all (G = 1); `importances` (C, K);
    `offset` (C,) joins the head's bias (what a centred method takes out of h); `centre` (G, D) is added to
    reconstructions. Outputs without concepts are named in `flags`, with why: their surrogate is the bias.
    `subspaces` (G, K) says which subspace a vector helps to span, where concepts are subspaces. `charged`
    counts the vectors that a reader is shown for an output: of subspaces all of their dimensions.
    """

    method: str
    vectors: Tensor
    importances: Tensor
    projection: Projection
    offset: Tensor
    centre: Tensor | None = None
    flags: Mapping[int, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    subspaces: Tensor | None = None

    def __post_init__(self) -> None:
        groups, outputs = len(self.vectors), len(self.importances)
        if groups not in (1, outputs) or self.importances.shape[1] != self.vectors.shape[1]:
            raise ShapeError(
                f"vectors {tuple(self.vectors.shape)} and importances {tuple(self.importances.shape)} do not "
                "belong together; expected (outputs or 1, concepts, dimensions) and (outputs, concepts)"
            )

    @classmethod
    def of(
        cls, vectors: Tensor, importances: Tensor, reading: Reading = "project", method: str = "given"
    ) -> Concepts:
        """An explanation of your own: vectors (C, K, D), or (K, D) shared by all outputs, importances (C, K).

        `reading` says how concepts are read: "project" is `h . v`, "coordinates" is `pinv(V) h`,
        "nonnegative" is non-negative least squares.
        """
        vectors = torch.as_tensor(vectors).detach().double()
        importances = torch.as_tensor(importances).detach().double()
        vectors = vectors[None] if vectors.dim() == 2 else vectors
        if vectors.dim() != 3 or importances.dim() != 2:
            raise ShapeError(
                f"vectors are (outputs, concepts, dimensions) and importances (outputs, concepts); got "
                f"{tuple(vectors.shape)} and {tuple(importances.shape)}"
            )
        if reading not in get_args(Reading):
            raise InputError(f"reading is {', '.join(get_args(Reading))}; got {reading!r}")
        _check_vectors(vectors, reading)
        nothing = importances.new_zeros(len(importances))
        return cls(method, vectors, importances, read_by(reading, vectors), nothing)

    @property
    def n_outputs(self) -> int:
        """How many outputs are explained."""
        return len(self.importances)

    @property
    def shared(self) -> bool:
        """Whether all outputs have one dictionary."""
        return len(self.vectors) == 1

    @property
    def present(self) -> Tensor:
        """Which vectors exist (G, K): dictionaries of unequal size are filled up with zeros."""
        return self.vectors.abs().amax(-1) > 0

    @property
    def charged(self) -> float:
        """Concepts shown for an output that has any, on average; of a sparse code those that are active."""
        active = getattr(self.projection, "active", None)
        if active is not None:
            return float(active)
        shown = self.present.sum(-1)
        return float(shown[shown > 0].double().mean())

    def project(self, h: Tensor) -> Tensor:
        """P(h; V): codes (N, G, K) of embeddings (N, D)."""
        return self.projection.codes(h)

    def with_importances(self, importances: Tensor, offset: Tensor | None = None) -> Concepts:
        """The same concepts weighted otherwise."""
        return replace(
            self, importances=importances.double(), offset=self.offset if offset is None else offset
        )

    def weights_of(self, head: Head) -> Tensor:
        """`f_i . v_ik` (C, K): the importances under which the surrogate is the head after reconstruction."""
        if self.shared:
            return head.weight @ self.vectors[0].T
        return torch.einsum("cd,ckd->ck", head.weight, self.vectors)

    def reconstructed_offset(self, head: Head) -> Tensor:
        """What the centre of the reconstruction adds to each output."""
        if self.centre is None:
            return torch.zeros_like(head.bias)
        return (head.weight * self.centre).sum(-1)

    def surrogate(self, h: Tensor, head: Head) -> Tensor:
        """Eq. 10 with the bias added back: `y_i = sum_k alpha_ik P(h; V_i)_k + offset_i + b_i` (N, C).

        Positions (N, J, D) are read one by one and averaged as the head averages them.
        """
        return self.surrogate_of(head)(h)

    def surrogate_of(self, head: Head) -> Callable[[Tensor], Tensor]:
        """The surrogate as a function of embeddings; where it is linear, one matrix made once."""
        if isinstance(self.projection, Linear):
            own = self.projection.rows.expand(self.n_outputs, -1, -1)
            weight = torch.einsum("ck,ckd->cd", self.importances, own)
            constant = head.bias + self.offset
            if self.projection.centre is not None:
                constant = constant - (weight * self.projection.centre).sum(-1)
            return lambda h: torch.addmm(constant, (h.mean(1) if h.dim() == 3 else h).double(), weight.T)

        def outputs(h: Tensor) -> Tensor:
            each = self.outputs(self.project(h.reshape(-1, h.shape[-1])), head)
            return each if h.dim() == 2 else each.reshape(*h.shape[:2], -1).mean(1)

        return outputs

    def outputs(self, codes: Tensor, head: Head) -> Tensor:
        """The surrogate's outputs (N, C) for codes (N, G, K)."""
        if self.shared:
            found = codes[:, 0] @ self.importances.T
        else:
            found = torch.einsum("nck,ck->nc", codes, self.importances)
        return found + head.bias + self.offset


def _check_vectors(vectors: Tensor, reading: Reading) -> None:
    lengths = vectors.norm(dim=-1)
    zero = (lengths == 0).nonzero()
    if len(zero):
        output, concept = zero[0].tolist()
        raise InputError(f"concept {concept} of output {output} is a zero vector ({len(zero)} in all)")
    unit = vectors / lengths[..., None]
    alike = ((unit @ unit.mT).triu(1) > 1 - 1e-9).nonzero()
    if len(alike) and reading == "project":
        output, first, second = alike[0].tolist()
        problem = f"concepts {first} and {second} of output {output} are the same direction, which 'project' "
        warn(problem + "counts twice; reading='coordinates' shares it between them")


# --- heads that read a flattened map ---------------------------------------------------------------------

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

    `sum_j f_ij` is the head's weight on a map that is the same everywhere. The model's own outputs stay.

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
