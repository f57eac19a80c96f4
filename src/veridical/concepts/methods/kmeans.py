"""K-Means: concepts are the centres of clusters of embeddings."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from veridical.concepts.methods.base import ConceptMethod, Found
from veridical.core.allowed import Count
from veridical.core.key import Key, uniform


def spread_starts(rows: Tensor, count: int, key: Key) -> Tensor:
    """K-means++: each further start is drawn with a chance that grows with its squared distance."""
    one = torch.zeros(1, dtype=torch.int64, device=rows.device)
    draws = uniform(key, one, 0, count, torch.float64)[0]
    centres = rows[(draws[:1] * len(rows)).long()]
    nearest = (rows - centres).square().sum(-1)
    for k in range(1, count):
        reach = nearest.cumsum(0)
        at = torch.searchsorted(reach, draws[k : k + 1] * reach[-1]).clamp(max=len(rows) - 1)
        centres = torch.cat([centres, rows[at]])
        nearest = torch.minimum(nearest, (rows - rows[at]).square().sum(-1))
    return centres


def lloyd(rows: Tensor, centres: Tensor, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """Move centres to the mean of their rows until they stay; a cluster that empties keeps its centre."""
    for _ in range(steps):
        owner = torch.cdist(rows, centres).argmin(1)
        share = torch.nn.functional.one_hot(owner, len(centres)).to(rows)
        counts = share.sum(0)
        moved = torch.where((counts > 0)[:, None], (share.T @ rows) / counts.clamp(min=1)[:, None], centres)
        if torch.equal(moved, centres):
            break
        centres = moved
    distance, owner = torch.cdist(rows, centres).min(1)
    return centres, owner, distance.square().sum()


def kmeans(rows: Tensor, count: int, key: Key, starts: int = 4, steps: int = 100) -> tuple[Tensor, Tensor]:
    """Centres (K, D) and the cluster of each row: the best of some starts by the sum of squared distances."""
    tries = [lloyd(rows, spread_starts(rows, count, key / start), steps) for start in range(starts)]
    best = int(torch.stack([loss for _, _, loss in tries]).argmin())
    return tries[best][0], tries[best][1]


@dataclass(frozen=True)
class KMeans(ConceptMethod):
    """Centres of K clusters; codes are coordinates in the centres (`pinv(V) h`), importances `f . v`."""

    name = "kmeans"
    stochastic = True
    starts: Count = 4
    """Starts, of which the best clustering is kept."""

    def find(self, rows: Tensor, weight: Tensor, key: Key) -> Found:
        return Found(kmeans(rows, self.n_concepts, key, self.starts)[0])
