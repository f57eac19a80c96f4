"""Planted superposition: activations whose true features are known, and how near a dictionary is to them."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from veridical.core.allowed import Count, Index, NotNegative, Positive, Share
from veridical.core.key import Key, integers, normal, uniform
from veridical.core.settings import Settings
from veridical.errors import InputError, ShapeError
from veridical.values.task import Task


@dataclass(frozen=True)
class Superposition(Settings):
    """Rows `h = sum_j a_j f_j` of sparse features `a` along fixed directions `f`.

    Features are rare by a power law, fire together in groups (a Gaussian copula with one factor per group),
    and some are children that fire only where their parent does: on independent features nearly every metric
    tells a trained dictionary from a random one, so easy data test nothing. `a` is 1 + N(0, spread^2), at
    least 0.1, where a feature fires, and 0 elsewhere.
    """

    name = "superposition"
    features: Count = 128
    """True features, which should be more than the dimensions."""
    dimensions: Count = 32
    """Length of a row."""
    active: Positive = 3.0
    """Features that fire in a row, on average, before hierarchy takes some away."""
    power: NotNegative = 0.8
    """Exponent of the frequencies: the r-th feature fires in proportion to r^-power."""
    correlation: Share = 0.4
    """Share of a feature's firing that it has in common with its group."""
    groups: Count = 8
    """Groups of features that fire together."""
    children: Share = 0.5
    """Share of the features, the rarer ones, that fire only where their parent does."""
    spread: NotNegative = 0.25
    """Standard deviation of the strength of a feature that fires."""
    seed: Index = 0
    """Seed of directions, groups and parents."""

    def __post_init__(self) -> None:
        if self.active > self.features / 2:
            raise InputError(f"{self.active} active features of {self.features} are not sparse")
        if round(self.children * self.features) >= self.features:
            raise InputError(f"children={self.children} leaves no feature of {self.features} to be a parent")

    @property
    def key(self) -> Key:
        """What keys every draw."""
        return Key(self.seed) / self.name

    @cached_property
    def directions(self) -> Tensor:
        """f (features, dimensions), of length 1."""
        return normalize(self._normal("directions", self.features, self.dimensions), dim=-1)

    @cached_property
    def frequencies(self) -> Tensor:
        """How often each feature fires by itself (features,), at most in half of the rows."""
        raw = torch.arange(1, self.features + 1, dtype=torch.float64) ** -self.power
        share = raw * self.active / raw.sum()
        for _ in range(64):  # what the cap takes away the others get
            share = (share * self.active / share.sum()).clamp(max=0.5)
        return share

    @cached_property
    def parents(self) -> Tensor:
        """The parent of each feature (features,), -1 for none; parents are among the more frequent."""
        born = round(self.children * self.features)
        first = self.features - born
        ids = torch.zeros(1, dtype=torch.int64)
        chosen = integers(self.key / "parents", ids, 0, born, max(1, first // 2))[0]
        return torch.cat([torch.full((first,), -1), chosen])

    def codes(self, count: int, draw: int = 0) -> Tensor:
        """How strongly each feature fires (count, features); another draw gives other rows."""
        rows, key = torch.arange(count), self.key / draw
        group = integers(
            self.key / "groups", torch.zeros(1, dtype=torch.int64), 0, self.features, self.groups
        )
        shared = normal(key / "shared", rows, 0, self.groups, torch.float64)[:, group[0]]
        own = normal(key / "own", rows, 0, self.features, torch.float64)
        level = self.correlation**0.5 * shared + (1 - self.correlation) ** 0.5 * own
        above = self.parents >= 0
        share = self.frequencies.clone()
        # a child fires half as often again where its parent lets it, so that children stay frequent enough
        share[above] = (share[above] / share[self.parents[above]]).clamp(max=0.5)
        fires = level > -torch.special.ndtri(share)
        fires[:, above] &= fires[:, self.parents[above]]
        strength = 1 + self.spread * normal(key / "strength", rows, 0, self.features, torch.float64)
        return (fires * strength.clamp(min=0.1)).float()

    def rows(self, count: int, draw: int = 0) -> Tensor:
        """Activations (count, dimensions)."""
        return self.codes(count, draw) @ self.directions

    def task(self, count: int = 512, draw: int = 1, classes: int = 8, train: int = 4096) -> Task:
        """A model that holds these features: layer "embed" gives the rows, "head" reads classes from them.

        The inputs are the features themselves. The more frequent half of the features favours classes,
        each a quarter of them; the head is the least-squares reading of that from the rows.
        """
        speak = self._normal("classes", self.features, classes)
        speak *= uniform(self.key / "speaks", torch.arange(self.features), 0, classes) < 0.25
        speak[self.features // 2 :] = 0
        known = self.codes(train)
        h = known @ self.directions
        wanted = known @ speak
        joined = torch.cat([h, torch.ones(len(h), 1)], 1).double()
        weight = torch.linalg.lstsq(joined, wanted.double()).solution.float()
        embed = nn.Linear(self.features, self.dimensions, bias=False)
        head = nn.Linear(self.dimensions, classes)
        net = nn.Sequential(OrderedDict(embed=embed, head=head))
        with torch.no_grad():
            embed.weight.copy_(self.directions.T)
            head.weight.copy_(weight[:-1].T)
            head.bias.copy_(weight[-1])
        codes = self.codes(count, draw)
        return Task(net.eval(), codes, labels=(codes @ speak).argmax(1), train=known, name=self.name)

    def _normal(self, purpose: str, rows: int, size: int) -> Tensor:
        return normal(self.key / purpose, torch.arange(rows), 0, size)


NEAR = 0.9
"""A feature is recovered by an atom whose cosine to it is at least this."""


def assign(atoms: Tensor, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The one-to-one matching of atoms and features with the largest sum of cosines, whatever their sign.

    Gives the matched atoms, their features, and the absolute cosines, min(atoms, features) of each.
    """
    if atoms.shape[1:] != features.shape[1:]:
        shapes = f"{tuple(atoms.shape)} and features {tuple(features.shape)}"
        raise ShapeError(f"atoms {shapes} differ in dimensions")
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
    ids, key = torch.arange(width), Key(seed) / "chance"
    atoms = (normal(key, ids, draw, features.shape[1]) for draw in range(draws))
    return sum(mcc(own, features.cpu()) for own in atoms) / draws


def truth_scores(
    atoms: Tensor, codes: Tensor, features: Tensor, fires: Tensor, chance: float | None = None
) -> dict[str, float]:
    """All comparisons with truth, of codes on rows where the firing features are known.

    Parameters
    ----------
    atoms, features
        Directions (atoms, D) and (features, D).
    codes, fires
        Codes (n, atoms), and where features fire (n, features).
    chance
        MCC of random atoms (default: computed).

    Returns
    -------
    dict
        `mcc` is above chance (0 there, 1 at the truth); precision, recall and F1 say whether matched atoms
        are active where their features are (means over matched pairs whose feature fires at all);
        `uniqueness` is the share of live atoms whose nearest feature no other live atom is nearest to;
        `recovered` is the share of features with an atom of cosine >= 0.9.
    """
    if codes.shape != (len(fires), len(atoms)) or fires.shape[1] != len(features):
        shapes = f"codes {tuple(codes.shape)} and firing {tuple(fires.shape)}"
        raise ShapeError(f"{shapes} do not belong to {len(atoms)} atoms and {len(features)} features")
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
        "mcc": (float(cosine.sum() / len(features)) - chance) / (1 - chance),
        "precision": float(precision),
        "recall": float(recall),
        "f1": float(f1),
        "uniqueness": float(alone.double().mean()) if len(nearest) else 0.0,
        "recovered": float((near.amax(0) >= NEAR).double().mean()),
    }
