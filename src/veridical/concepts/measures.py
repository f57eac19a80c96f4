"""Judge concept explanations: SURF, and the rival ICE-Eval."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from veridical.concepts.agreement import chunks, compare
from veridical.concepts.complexity import ice_flops, surf_flops
from veridical.concepts.concepts import Concepts
from veridical.concepts.embeddings import Embeddings
from veridical.concepts.head import Head
from veridical.concepts.judgement import Judgement
from veridical.concepts.projection import Linear
from veridical.errors import InputError, ShapeError

Positions = Literal["pooled", "each"]


def judge(
    concepts: Concepts,
    embeddings: Embeddings,
    head: Head,
    positions: Positions = "pooled",
    companions: bool = True,
) -> Judgement:
    """SURF: how far the linear surrogate made of concepts and importances is from the model (eqs. 10-12).

    `positions="each"` reads concepts at every position and averages, which differs from the pooled embedding
    where the projection is not linear. `companions=False` leaves out everything but MAE, RMSE, EMD and top-1.
    """
    _check(concepts, embeddings, head, positions)
    each = positions == "each"
    width = concepts.vectors.shape[0] * concepts.vectors.shape[1]
    if each or not companions:
        values = compare(concepts.surrogate_of(head), embeddings, head, width, companions, each)
        rebuilding: dict[str, float] = reconstruction(concepts, embeddings, head) if companions else {}
    else:
        values, rebuilding = _codes_once(concepts, embeddings, head, width)
    # of a sparse code a reader is shown what is active, which only the data can tell
    sparse = not isinstance(concepts.projection, Linear) and getattr(concepts.projection, "active", 0) is None
    charged = rebuilding.get("active", concepts.charged) if sparse else concepts.charged
    facts: dict[str, float] = {
        "concepts": charged,
        "parameters": 0,
        "flops": surf_flops(head.n_outputs, round(charged)),
    }
    if companions:
        facts |= {"plausibility": plausibility(concepts, head), **rebuilding}
    notes = (*concepts.notes, f"positions: {positions}")
    return Judgement(
        concepts.method, "SURF", values, embeddings.ids, 1 / head.n_outputs, facts, concepts.flags, notes
    )


def _codes_once(
    concepts: Concepts, embeddings: Embeddings, head: Head, width: int
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """All measures and the reconstruction, with codes that are found once: they are most of the work."""
    if isinstance(concepts.projection, Linear):
        values = compare(concepts.surrogate_of(head), embeddings, head, width)
        return values, reconstruction(concepts, embeddings, head)
    found: list[dict[str, Tensor]] = []
    totals = concepts.vectors.new_zeros(3)
    for piece in chunks(len(embeddings), max(head.dimension, head.n_outputs, width)):
        part = embeddings.take(piece).as_pooled()
        codes = concepts.project(part.values.double())
        answers = concepts.answers(codes, head)
        found.append(compare(lambda _, y=answers: y, part, head, width))  # type: ignore[misc]
        totals += _rebuilding(concepts, part, codes, head)
    values = {name: torch.cat([each[name] for each in found]) for name in found[0]}
    return values, _rebuilding_facts(totals, len(embeddings), head)


def ice_eval(concepts: Concepts, embeddings: Embeddings, head: Head) -> Judgement:
    """ICE-Eval (eq. 4): rebuild the embedding from its concepts, then ask the head.

    `f_i . (V_i^T p_i + mu_i) + b_i` needs no embedding to be built: it is a surrogate whose importances are
    `f_i . v_ik`. The explanation's own importances play no part.
    """
    _check(concepts, embeddings, head, "pooled")
    rebuilt = _rebuilt(concepts, head)
    width = concepts.vectors.shape[0] * concepts.vectors.shape[1]
    values = compare(rebuilt.surrogate_of(head), embeddings, head, width)
    facts = {"parameters": 0, "flops": ice_flops(head.n_outputs, round(concepts.charged), head.dimension)}
    return Judgement(
        concepts.method, "ICE-Eval", values, embeddings.ids, 1 / head.n_outputs, facts, concepts.flags
    )


def plausibility(concepts: Concepts, head: Head) -> float:
    """Mean over outputs of the largest cosine between a concept and the output's weights (supplement A)."""
    unit = torch.nn.functional.normalize(concepts.vectors, dim=-1)
    weight = torch.nn.functional.normalize(head.weight, dim=-1)
    if concepts.shared:
        cosine = weight @ unit[0].T
    else:
        cosine = torch.einsum("cd,ckd->ck", weight, unit)
    cosine = cosine.masked_fill(~concepts.present.expand_as(cosine), -torch.inf).amax(-1)
    kept = cosine[torch.isfinite(cosine)]
    return float(kept.mean()) if len(kept) else float("nan")


def reconstruction(concepts: Concepts, embeddings: Embeddings, head: Head) -> dict[str, float]:
    """How well embeddings are rebuilt: mean squared error, KL(p || p_rebuilt), concepts in use."""
    totals = concepts.vectors.new_zeros(3)
    groups, count, width = concepts.vectors.shape
    for piece in chunks(len(embeddings), max(width, groups * count)):
        part = embeddings.take(piece).as_pooled()
        totals += _rebuilding(concepts, part, concepts.project(part.values.double()), head)
    return _rebuilding_facts(totals, len(embeddings), head)


def _rebuilding_facts(totals: Tensor, count: int, head: Head) -> dict[str, float]:
    mse, kl, active = (totals / count).tolist()
    facts = {"reconstruction_mse": mse, "active": active}
    return facts | {"reconstruction_kl": kl} if head.classifies else facts


def _rebuilding(concepts: Concepts, part: Embeddings, codes: Tensor, head: Head) -> Tensor:
    """Sums over the rows of a part (3,): squared error of the embedding, KL, codes that are not zero."""
    h = part.values.double()
    groups, count, width = concepts.vectors.shape
    centre = torch.zeros_like(concepts.vectors[:, 0]) if concepts.centre is None else concepts.centre
    seen = (h @ concepts.vectors.reshape(-1, width).T).reshape(len(h), groups, count)
    seen = seen - torch.einsum("gkd,gd->gk", concepts.vectors, centre)
    away = h.square().sum(-1, keepdim=True) - 2 * h @ centre.T + centre.square().sum(-1)
    if concepts.shared:  # one dictionary may be wide: no products of its atoms with each other
        inner = (codes[:, 0] @ concepts.vectors[0]).square().sum(-1, keepdim=True)
    else:
        inner = torch.einsum("ngk,gkj,ngj->ng", codes, concepts.vectors @ concepts.vectors.mT, codes)
    error = (away - 2 * (codes * seen).sum(-1) + inner).clamp(min=0).mean(-1).sum() / width
    active = (codes != 0).double().sum(-1).mean(-1).sum()
    kl = torch.zeros_like(error)
    if head.classifies:
        scale = 0.5 if head.kind == "binary" else 1.0
        log_p = torch.log_softmax(head.outputs(h) * scale, -1)
        log_q = torch.log_softmax(_rebuilt(concepts, head).answers(codes, head) * scale, -1)
        kl = (log_p.exp() * (log_p - log_q)).sum()
    return torch.stack([error, kl, active])


def _rebuilt(concepts: Concepts, head: Head) -> Concepts:
    return concepts.with_importances(concepts.weights_of(head), concepts.reconstructed_offset(head))


def least_squares_importances(concepts: Concepts, embeddings: Embeddings, head: Head) -> Tensor:
    """The importances (C, K) that fit the model's outputs best on these embeddings, concepts as they are."""
    groups, count, _ = concepts.vectors.shape
    if concepts.shared and len(embeddings) < count:  # a wide dictionary: rows are fewer than atoms
        h = embeddings.pooled
        wanted = (
            (head.outputs(h) if head.exact else embeddings.outputs.double()) - head.bias - concepts.offset
        )
        return (torch.linalg.pinv(concepts.project(h)[:, 0].double(), rtol=1e-6) @ wanted).T
    gram = concepts.vectors.new_zeros(groups, count, count)
    seen = concepts.vectors.new_zeros(head.n_outputs, count)
    for piece in chunks(len(embeddings), groups * count):
        part = embeddings.take(piece)
        h = part.pooled
        # what is to be explained is the model: an expanded head is only near it
        wanted = (head.outputs(h) if head.exact else part.outputs.double()) - head.bias - concepts.offset
        codes = concepts.project(h)
        gram += torch.einsum("ngk,ngj->gkj", codes, codes)
        if concepts.shared:
            seen += wanted.T @ codes[:, 0]
        else:
            seen += torch.einsum("nc,nck->ck", wanted, codes)
    inverse = torch.linalg.pinv(gram, hermitian=True, rtol=1e-12)
    return torch.einsum("ckj,cj->ck", inverse.expand(head.n_outputs, -1, -1), seen)


def _check(concepts: Concepts, embeddings: Embeddings, head: Head, positions: str) -> None:
    if positions not in ("pooled", "each"):
        raise InputError(f"positions are 'pooled' or 'each'; got {positions!r}")
    if positions == "each" and not embeddings.spatial:
        raise InputError("positions='each' needs embeddings with positions: collect with spatial=True")
    if concepts.n_outputs != head.n_outputs:
        raise ShapeError(f"concepts explain {concepts.n_outputs} outputs, the head has {head.n_outputs}")
    if concepts.vectors.shape[-1] != head.dimension or embeddings.dimension != head.dimension:
        raise ShapeError(
            f"concepts have {concepts.vectors.shape[-1]} dimensions and embeddings {embeddings.dimension}, "
            f"the head expects {head.dimension}"
        )
    if not head.exact:  # otherwise the head's own answers are taken, whatever those are
        embeddings.check_outputs(head)
    labels = embeddings.labels
    if labels is None or not head.classifies:
        return
    least, most = float(labels.min()), float(labels.max())
    if labels.dim() != 1 or labels.is_floating_point() or not 0 <= least <= most < head.n_outputs:
        raise InputError(
            f"labels are one class number each, from 0 to {head.n_outputs - 1}; got {labels.dtype} of shape "
            f"{tuple(labels.shape)} from {least:g} to {most:g}"
        )
