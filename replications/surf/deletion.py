"""Deletion proxies (table 1): take the most important concepts away and watch the model.

They are here to be compared with, not to be trusted: it is unclear how to delete a concept, and what is left
may lie far from anything the model has seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from veridical.concepts import Concepts, Embeddings, Head, Split
from veridical.concepts.materials import MaskedModel
from veridical.concepts.measures import chunks
from veridical.errors import InputError, NotApplicableError
from veridical.perturb.road import solve_holes

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, eq=False, repr=False)
class DeletionCurve:
    """What the model says after 0, 1, ..., K concepts of the predicted class are gone: values (N, K + 1)."""

    space: str
    quantity: str
    values: Tensor
    ids: Tensor
    classes: Tensor

    @property
    def mean(self) -> Tensor:
        """The curve a paper would print (K + 1,)."""
        return self.values.mean(0)

    def degraded_classes(self, by: float = 0.8) -> Tensor:
        """CDISCO's first measure (K + 1,): predicted classes that lose more than a share `by` of the start.

        Of a curve of class accuracy the start is 1 by construction.
        """
        member = torch.nn.functional.one_hot(self.classes).double()
        member = member[:, member.sum(0) > 0]
        each = member.T @ self.values / member.sum(0)[:, None]
        return (each[:, :1] - each > by * each[:, :1].abs()).sum(0)

    def plot(self, ax: Axes | None = None) -> Axes:
        """The mean over deleted concepts."""
        from veridical.plots import axes

        ax = axes(ax)
        ax.plot(range(len(self.mean)), self.mean.tolist(), "o-")
        ax.set_xlabel("concepts deleted")
        ax.set_ylabel(self.quantity)
        return ax

    def __repr__(self) -> str:
        curve = ", ".join(f"{v:.4g}" for v in self.mean.tolist())
        return f"Deletion in {self.space} space, {self.quantity} after each concept: {curve}"


def owned(concepts: Concepts) -> Tensor:
    """The concept (G, K) that each vector belongs to: itself, or the subspace that it helps to span."""
    if concepts.subspaces is not None:
        return concepts.subspaces.long()
    return torch.arange(concepts.vectors.shape[1], device=concepts.vectors.device)[None]


def members(concepts: Concepts) -> Tensor:
    """Which vectors (C, concepts, K) each concept of an output consists of, the most important concept first.

    A concept is one vector, or a subspace with all vectors of its basis, as important as the length of
    their importances.
    """
    owners = owned(concepts).expand(concepts.n_outputs, -1)
    own = torch.nn.functional.one_hot(owners).mT * concepts.present.long()[:, None]
    size = (own * concepts.importances.square()[:, None]).sum(-1)
    order = size.argsort(dim=-1, descending=True, stable=True)
    return own.gather(1, order[..., None].expand_as(own)).bool()


def _check_classifier(head: Head) -> None:
    if not head.classifies:
        raise NotApplicableError(
            f"deletion asks what becomes of the predicted class and this head is a {head.kind}; SURF "
            "(judge) applies"
        )


def concept_deletion(concepts: Concepts, embeddings: Embeddings, head: Head) -> DeletionCurve:
    """CRAFT's proxy: set codes to zero, rebuild, and read the logit of the predicted class."""
    _check_classifier(head)
    belongs = members(concepts)
    weights, offset = concepts.weights_of(head), concepts.reconstructed_offset(head) + head.bias
    curves, owners = [], []
    for piece in chunks(len(embeddings), concepts.vectors[..., 0].numel()):
        h = embeddings.take(piece).pooled
        owner = head.outputs(h).argmax(1)
        codes = concepts.project(h)
        every = torch.arange(len(h), device=h.device)
        own = codes[every, 0 if concepts.shared else owner] * weights[owner]
        gone = (own[:, None] * belongs[owner]).sum(-1).cumsum(-1)
        whole = own.sum(-1, keepdim=True) + offset[owner][:, None]
        curves.append(torch.cat([whole, whole - gone], -1))
        owners.append(owner)
    return DeletionCurve("concept", "class logit", torch.cat(curves), embeddings.ids, torch.cat(owners))


def weight_deletion(concepts: Concepts, embeddings: Embeddings, head: Head) -> DeletionCurve:
    """CDISCO's second proxy: take the span of the concepts out of the head, and ask whether the class stays.

    The weights that belong to a concept are the head's component along it; those of all outputs go.
    """
    _check_classifier(head)
    belongs = members(concepts)
    owner = head.outputs(embeddings.pooled).argmax(1)
    count = belongs.shape[1]
    values = torch.ones(len(embeddings), count + 1, dtype=torch.float64, device=embeddings.values.device)
    for output in owner.unique().tolist():
        rows = embeddings.pooled[owner == output].double()
        own = concepts.vectors[0 if concepts.shared else output]
        for k in range(1, count + 1):
            basis = _basis(own[belongs[output, :k].any(0)])
            left = head.weight - (head.weight @ basis.T) @ basis
            kept = (rows @ left.T + head.bias).argmax(1) == output
            values[owner == output, k] = kept.double()
    return DeletionCurve("weight", "class accuracy", values, embeddings.ids, owner)


def pixel_deletion(
    concepts: Concepts,
    split: Split,
    inputs: Tensor,
    fill: float | Tensor | Literal["inpainting", "masked"] = 0.0,
    share: float = 0.5,
) -> DeletionCurve:
    """Take away the pixels where a concept is active, and ask whether the class stays.

    A number greys them out (ACE's proxy; `degraded_classes` of it is CDISCO's first), "inpainting" continues
    what surrounds them (MCD's), "masked" keeps them out of every convolution (HU-MCD's). A concept is active
    where its code exceeds `share` of its largest one in the image, on the grid of the last map; the grid is
    enlarged to pixels. Rows go through the task's predictor and are counted.
    """
    _check_classifier(split.head)
    if inputs.dim() != 4:
        raise NotApplicableError(
            f"pixels are deleted from images (N, C, H, W); inputs are {tuple(inputs.shape)}"
        )
    if not 0 < share < 1:
        raise InputError(f"share lies between 0 and 1, got {share}")
    if isinstance(fill, str) and fill not in ("inpainting", "masked"):
        raise InputError(f"pixels are filled by a number, 'inpainting' or 'masked'; got {fill!r}")
    maps = split.collect(inputs, spatial=True)
    if maps.grid is None:
        raise NotApplicableError(f"the {maps.values.shape[1]} positions of a sample form no map")
    owner = maps.outputs.argmax(1)
    codes = concepts.project(maps.vectors).reshape(*maps.values.shape[:2], *concepts.vectors.shape[:2])
    every = torch.arange(len(inputs), device=inputs.device)
    own = codes[every, :, 0 if concepts.shared else owner]
    if concepts.subspaces is not None:
        own = own.square()  # of a subspace the length of its codes counts
    own = torch.einsum("njk,nck->njc", own, members(concepts)[owner].to(own))
    if concepts.subspaces is not None:
        own = own.sqrt()
    active = (own > share * own.amax(1, keepdim=True)) & (own > 0)
    gone = active.cumsum(-1) > 0
    count = gone.shape[-1]
    grid = gone.movedim(2, 1).reshape(-1, count, *maps.grid).to(inputs.dtype)
    mask = interpolate(grid, inputs.shape[2:], mode="nearest") > 0.5
    values = torch.ones(len(inputs), count + 1, dtype=torch.float64, device=inputs.device)
    for k in range(count):
        answers = _without(split, inputs, mask[:, k : k + 1], fill)
        values[:, k + 1] = (answers.argmax(1) == owner).double()
    return DeletionCurve("pixel", "class accuracy", values, maps.ids, owner)


def _without(split: Split, inputs: Tensor, gone: Tensor, fill: float | Tensor | str) -> Tensor:
    """The model's outputs on images without some pixels (N, 1, H, W)."""
    predictor = split.task.predictor
    if fill == "masked":
        view = MaskedModel(predictor.model, split.map_layer or "")
        return split.head.outputs(
            predictor.with_model(view, lambda answer: answer).outputs(inputs, (~gone[:, 0],))
        )
    if fill == "inpainting":
        return predictor.outputs(torch.where(gone, solve_holes(inputs, gone), inputs))
    return predictor.outputs(torch.where(gone, torch.as_tensor(fill).to(inputs), inputs))


def _basis(vectors: Tensor) -> Tensor:
    """An orthonormal basis of the span; duplicates and zeros add nothing."""
    _, values, right = torch.linalg.svd(vectors, full_matrices=False)
    return right[values > 1e-10 * values[0].clamp(min=1e-300)]
