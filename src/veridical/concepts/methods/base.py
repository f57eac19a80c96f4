"""The protocol of concept methods, and the work they share: rows grouped by output, one fit per group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from veridical.concepts.concepts import Concepts, Reading, read_by
from veridical.concepts.embeddings import Embeddings, Head, Kind
from veridical.core.allowed import Count
from veridical.core.key import Key, as_key
from veridical.core.settings import Settings
from veridical.errors import InputError, NotApplicableError, ShapeError

SIGNED_METHODS = "PCA, KMeans, ICA, CDISCO, ConceptSHAP, MCD and SAE"
"""Methods that embeddings with negative values do not hinder."""


@dataclass(frozen=True, eq=False)
class ConceptVectors:
    """What a method found in the rows of one output: vectors (K, D), and what is not `f . v` or 0."""

    vectors: Tensor
    importances: Tensor | None = None
    centre: Tensor | None = None
    subspaces: Tensor | None = None


@dataclass(frozen=True)
class ConceptMethod(Settings):
    """Finds concepts: `fit(embeddings, head, seed)` -> `Concepts` (`project`, `vectors`, `importances`).

    Rows are grouped by what the model predicts; an output with fewer rows than concepts gets none, and is
    flagged.
    """

    n_concepts: Count = 5
    """Concepts of every output."""
    shared: bool = False
    """Whether one dictionary, fitted on all rows, serves every output."""
    fits_on: ClassVar[Kind] = "pooled"
    """What the method finds its concepts in: whole samples, positions of maps, crops or segments."""
    stochastic: ClassVar[bool] = False
    """Whether another seed may find other concepts."""
    nonnegative: ClassVar[bool] = False
    """Whether embeddings must not be negative."""
    overcomplete: ClassVar[bool] = False
    """Whether more concepts than dimensions make sense: clusters and atoms, but not directions of a basis."""
    reading: ClassVar[Reading] = "coordinates"
    """How concepts are read: `h . v`, coordinates in V, or non-negative ones."""

    def find(self, rows: Tensor, weight: Tensor, key: Key) -> ConceptVectors:
        """Concepts of one group of rows (n, D), n >= K; `weight` is the output's (D,), or all (C, D)."""
        raise TypeError(f"{type(self).__name__} finds no concepts by itself; use one of its subclasses")

    def fit(self, embeddings: Embeddings, head: Head, seed: int | Key = 0) -> Concepts:
        """Find the concepts of every output."""
        check_embeddings(self, embeddings, head, self.nonnegative)
        key = as_key(seed) / self.name
        if self.shared:
            rows = embeddings.vectors.double()
            check_count(self, len(rows))
            one = self.find(rows, head.weight, key)
            refuse_if_none(not len(one.vectors), self.n_concepts, len(rows))
            return assemble(self.name, [one], head, self.reading, {}, shared=True)
        members = head.membership(embeddings.outputs)
        lively = embeddings.values.abs().flatten(1).amax(1) > 0
        found: list[ConceptVectors | None] = [None] * head.n_outputs
        flags: dict[int, str] = {}
        for output, count in enumerate(members.sum(0).tolist()):
            if count < self.n_concepts:
                flags[output] = too_few(count, self.n_concepts)
            elif not bool(lively[members[:, output]].any()):
                flags[output] = "all its embeddings are zero"
            else:
                rows = embeddings.values[members[:, output]].reshape(-1, embeddings.dimension).double()
                one = self.find(rows, head.weight[output], key / output)
                if len(one.vectors):
                    found[output] = one
                else:
                    flags[output] = "no concept was found in its embeddings"
        refuse_if_none(len(flags) == head.n_outputs, self.n_concepts, len(embeddings))
        return assemble(self.name, found, head, self.reading, flags)


def check_embeddings(method: ConceptMethod, embeddings: Embeddings, head: Head, nonnegative: bool) -> None:
    """Refuse what no fit could use, and rows of another kind than the method finds its concepts in."""
    width, count = head.dimension, method.n_concepts
    if embeddings.kind not in (None, method.fits_on) and method.fits_on != "pooled":
        raise NotApplicableError(needed(method, f"these are embeddings of kind '{embeddings.kind}'"))
    if embeddings.dimension != width:
        raise ShapeError(f"embeddings have {embeddings.dimension} dimensions, the head expects {width}")
    embeddings.check_outputs(head)
    if not bool(embeddings.values.any()):
        raise InputError("all embeddings are zero: there is nothing to find concepts in")
    if count > width and not method.overcomplete:
        raise InputError(f"{count} concepts in {width} dimensions, which hold {width} directions at most")
    if nonnegative and bool((embeddings.values < 0).any()):
        raise NotApplicableError(
            f"{method.name} factorises into non-negative parts and these embeddings have negative values "
            f"(down to {float(embeddings.values.min()):.3g}); {SIGNED_METHODS} apply"
        )


def check_count(method: ConceptMethod, rows: int) -> None:
    """Refuse fewer rows than concepts, where all outputs share them."""
    if rows < method.n_concepts:
        raise InputError(f"{rows} embeddings are fewer than the {method.n_concepts} concepts asked for")


def needed(method: ConceptMethod, why: str) -> str:
    """What a method is fitted on, in words, and where that comes from."""
    source = {
        "pooled": "one vector of each sample: Split.train()",
        "positions": "the vector at every position or token: Split.train(spatial=True)",
        "crops": "crops of images: crop_embeddings(split, images, size)",
        "segments": "segments of images: segment_embeddings(split, images)",
    }[method.fits_on]
    return f"{method.name} is fitted on {source}; {why}"


def too_few(count: int, wanted: int) -> str:
    """Why an output has no concepts."""
    return "never predicted" if count == 0 else f"{count} samples for {wanted} concepts"


def refuse_if_none(none: bool, wanted: int, rows: int) -> None:
    """All outputs without concepts is a mistake, not a result."""
    if none:
        raise InputError(
            f"no output has {wanted} samples for {wanted} concepts ({rows} embeddings in all), or nothing is "
            "found in them; give more train rows, lower n_concepts, scale the embeddings, or shared=True"
        )


def assemble(
    name: str,
    found: list[ConceptVectors] | list[ConceptVectors | None],
    head: Head,
    reading: Reading,
    flags: dict[int, str],
    shared: bool = False,
) -> Concepts:
    """Put the groups into one explanation; smaller dictionaries are filled up with zero vectors."""
    kept = next(item for item in found if item is not None)
    nothing = kept.vectors.new_zeros(0, head.dimension)

    def laid(name: str, empty: Tensor) -> Tensor | None:
        if getattr(kept, name) is None:
            return None
        parts = [empty if item is None else getattr(item, name) for item in found]
        return pad_sequence(parts, batch_first=True).double()

    vectors = laid("vectors", nothing)
    centre = laid("centre", nothing.new_zeros(head.dimension))
    # a shared dictionary brings the importances of all outputs as they are
    given = None if shared else laid("importances", nothing[:, 0])
    subspaces = laid("subspaces", nothing[:, 0])
    assert vectors is not None
    projection = read_by(reading, vectors, centre)
    if shared:
        importances = head.weight @ vectors[0].T if kept.importances is None else kept.importances
    else:
        importances = torch.einsum("cd,ckd->ck", head.weight, vectors) if given is None else given
    offset = torch.zeros_like(head.bias) if centre is None else (head.weight * centre).sum(-1)
    return Concepts(name, vectors, importances, projection, offset, centre, flags, subspaces=subspaces)
