"""How near a dictionary is to the true features, where those are known."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from veridical.core.key import Key, normal
from veridical.errors import InputError, ShapeError

NEAR = 0.9
"""A feature is recovered by an atom whose cosine to it is at least this."""


def assign(atoms: Tensor, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The one-to-one matching of atoms and features with the largest sum of cosines, whatever their sign.

    Gives the matched atoms, their features, and the absolute cosines, min(atoms, features) of each.
    """
    if atoms.shape[1:] != features.shape[1:]:
        raise ShapeError(
            f"atoms {tuple(atoms.shape)} and features {tuple(features.shape)} differ in dimensions"
        )
    from scipy.optimize import linear_sum_assignment

    cosine = (normalize(atoms.double(), dim=-1) @ normalize(features.double(), dim=-1).T).abs().cpu()
    rows, columns = linear_sum_assignment(cosine.numpy(), maximize=True)
    one, other = torch.from_numpy(rows), torch.from_numpy(columns)
    return one, other, cosine[one, other]


def mcc(atoms: Tensor, features: Tensor) -> float:
    """The mean cosine of matched atoms and features; an unmatched feature counts as 0."""
    return float(assign(atoms, features)[2].sum() / len(features))


def chance_mcc(width: int, features: Tensor, seed: int = 0, draws: int = 4) -> float:
    """What random atoms reach: .27 for 512 of them against 512 features in 128 dimensions."""
    ids = torch.arange(width)
    found = [
        mcc(normal(Key(seed) / "chance", ids, draw, features.shape[1]), features.cpu())
        for draw in range(draws)
    ]
    return sum(found) / draws


def above_chance(value: float, chance: float) -> float:
    """0 at chance, 1 at the truth."""
    return (value - chance) / (1 - chance)


def truth_scores(
    atoms: Tensor, codes: Tensor, features: Tensor, fires: Tensor, chance: float | None = None
) -> dict[str, float]:
    """All that can be said against truth, of codes (n, atoms) on rows where features fire (n, features).

    `mcc` is above chance; precision, recall and F1 say whether matched atoms are active where their features
    are (means over matched pairs whose feature fires at all); `uniqueness` is the share of live atoms whose
    nearest feature no other live atom is nearest to; `recovered` is the share of features with an atom of
    cosine >= 0.9.
    """
    if codes.shape != (len(fires), len(atoms)) or fires.shape[1] != len(features):
        raise ShapeError(
            f"codes {tuple(codes.shape)} and firing {tuple(fires.shape)} do not belong to {len(atoms)} "
            f"atoms and {len(features)} features"
        )
    if not len(codes):
        raise InputError("truth is judged on rows, and there are none")
    one, other, cosine = assign(atoms, features)
    chance = chance_mcc(len(atoms), features) if chance is None else chance
    active, there = (codes.cpu() != 0)[:, one], fires.cpu()[:, other]
    both = (active & there).sum(0).double()
    seen = there.any(0)
    precision = (both / active.sum(0).clamp(min=1))[seen].mean()
    recall = (both / there.sum(0).clamp(min=1))[seen].mean()
    f1 = (2 * both / (active.sum(0) + there.sum(0)).clamp(min=1))[seen].mean()
    live = (codes != 0).any(0).cpu()
    near = normalize(atoms.double(), dim=-1).cpu() @ normalize(features.double(), dim=-1).cpu().T
    near = near.abs()
    nearest = near[live].argmax(1)
    alone = torch.bincount(nearest, minlength=len(features))[nearest] == 1
    return {
        "mcc": above_chance(float(cosine.sum() / len(features)), chance),
        "precision": float(precision),
        "recall": float(recall),
        "f1": float(f1),
        "uniqueness": float(alone.double().mean()) if len(nearest) else 0.0,
        "recovered": float((near.amax(0) >= NEAR).double().mean()),
    }
