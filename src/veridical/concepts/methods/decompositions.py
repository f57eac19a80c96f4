"""Methods that factorise an output's embeddings: PCA, ICA, K-Means, NMF, ICE, CDISCO."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from veridical.concepts.methods.base import ConceptMethod, ConceptVectors
from veridical.core.allowed import Count
from veridical.core.key import Key, normal, uniform


def right_singular(rows: Tensor, count: int | None = None) -> tuple[Tensor, Tensor]:
    """Singular values and right singular vectors (r, D) of rows (n, D), largest first.

    Through the Gram matrix of the columns where rows are many: left singular vectors are never needed.
    """
    if len(rows) < rows.shape[1]:
        _, values, vectors = torch.linalg.svd(rows, full_matrices=False)
    else:
        squares, basis = torch.linalg.eigh(rows.T @ rows)
        values, vectors = squares.clamp(min=0).sqrt().flip(0), basis.T.flip(0)
    return values[:count], vectors[:count]


def spanned(rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The leading singular values and vectors, but those beyond the rank of the rows: they are arbitrary.

    One is always kept.
    """
    values, vectors = right_singular(rows, count)
    rank = max(1, int((values > 1e-6 * values[0]).sum()))
    return values[:rank], vectors[:rank]


def oriented(vectors: Tensor, rows: Tensor) -> Tensor:
    """Vectors turned so that the mean of `h . v` is not negative."""
    return torch.where((rows.mean(0) @ vectors.T < 0)[:, None], -vectors, vectors)


@dataclass(frozen=True)
class PCA(ConceptMethod):
    """Top K eigenvectors of the covariance; codes `v . (h - mu)`, importances `f . v`; `f . mu` joins b."""

    name = "pca"

    def find(self, rows: Tensor, weight: Tensor, key: Key) -> ConceptVectors:
        centre = rows.mean(0)
        _, vectors = spanned(rows - centre, self.n_concepts)
        return ConceptVectors(oriented(vectors, rows), centre=centre)


_SETTLED = 1e-6


def unmixing(white: Tensor, key: Key, steps: int) -> Tensor:
    """FastICA on whitened rows (n, K): all components at once, contrast log cosh (Hyvarinen 1999).

    `W <- sym(E[g(W x) x^T] - diag(E[g'(W x)]) W)` with g = tanh, where sym makes rows orthonormal.
    """
    count = white.shape[1]
    ids = torch.arange(count, device=white.device)
    turn = _orthonormal(normal(key, ids, 0, count, torch.float64))
    for _ in range(steps):
        curved = torch.tanh(white @ turn.T)
        slope = (1 - curved.square()).mean(0)
        after = _orthonormal(curved.T @ white / len(white) - slope[:, None] * turn)
        moved = 1 - (after * turn).sum(-1).abs()
        turn = after
        if bool((moved < _SETTLED).all()):
            break
    return turn


def _orthonormal(matrix: Tensor) -> Tensor:
    left, _, right = torch.linalg.svd(matrix)
    return left @ right


@dataclass(frozen=True)
class ICA(ConceptMethod):
    """Columns of the mixing matrix of FastICA on the K leading components.

    They span the same subspace as the K principal components, so with codes `pinv(V) (h - mu)` and
    importances `f . v` SURF is that of PCA: what differs is how a reader would name the concepts.
    """

    name = "ica"
    stochastic = True

    def find(self, rows: Tensor, weight: Tensor, key: Key) -> ConceptVectors:
        centre = rows.mean(0)
        values, vectors = spanned(rows - centre, self.n_concepts)
        spread = (values / len(rows) ** 0.5).clamp(min=1e-300)
        white = (rows - centre) @ vectors.T / spread
        turn = unmixing(white, key, steps=200)
        return ConceptVectors(turn @ (spread[:, None] * vectors), centre=centre)


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

    def find(self, rows: Tensor, weight: Tensor, key: Key) -> ConceptVectors:
        return ConceptVectors(kmeans(rows, self.n_concepts, key, self.starts)[0])


def nmf(rows: Tensor, count: int, steps: int = 1000, ridge: float = 0.0) -> tuple[Tensor, Tensor]:
    """`rows ~ U W` with `U, W >= 0`, by scikit-learn's coordinate descent; gives U (n, K) and W (K, D).

    Minimises `||X - U W||^2 / 2 + ridge (D ||U||^2 + n ||W||^2) / 2`.
    """
    from sklearn import decomposition
    from sklearn.exceptions import ConvergenceWarning

    solver = decomposition.NMF(count, init="nndsvda", tol=1e-6, max_iter=steps, alpha_W=ridge, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the last of many small steps decides nothing
        weights = solver.fit_transform(rows.double().cpu().numpy())
    return torch.from_numpy(weights).to(rows.device), torch.from_numpy(solver.components_).to(rows.device)


@dataclass(frozen=True)
class NMF(ConceptMethod):
    """The baseline: parts of NMF, codes are coordinates in them (`pinv(W) h`), importances `f . w`."""

    name = "nmf"
    nonnegative = True
    steps: Count = 1000
    """Steps of the solver at most."""

    def find(self, rows: Tensor, weight: Tensor, key: Key) -> ConceptVectors:
        return ConceptVectors(_living(nmf(rows, self.n_concepts, self.steps)[1]))


@dataclass(frozen=True)
class ICE(NMF):
    """ICE (Zhang et al. 2021): parts of NMF read by exact non-negative least squares.

    The importance is the directional derivative of the logit along a part; for a linear head `f_i . w_k`.
    """

    name = "ice"
    reading = "nonnegative"


def _living(parts: Tensor) -> Tensor:
    """Without the parts that are all zero, which explain nothing: rows of a lower rank need fewer."""
    return parts[parts.abs().amax(-1) > 0]


@dataclass(frozen=True)
class CDISCO(ConceptMethod):
    """CDISCO (Graziani et al. 2023): uncentred SVD; `alpha` is a z-score over all singular vectors.

    `a_v = mean over the output's samples of (grad y_i . v)(h . v)`; for a linear head the gradient is `f_i`.
    The K largest |z| are kept with their sign. Vectors point to where the samples lie; codes are `h . v`.
    """

    name = "cdisco"
    reading = "project"

    def find(self, rows: Tensor, weight: Tensor, key: Key) -> ConceptVectors:
        values, vectors = right_singular(rows)
        # beyond the rank of the rows a singular vector is arbitrary, and would set the scale of the z-scores
        vectors = oriented(vectors[values > 1e-6 * values[0]], rows)
        weights = weight if weight.dim() == 2 else weight[None]
        strength = (weights @ vectors.T) * (rows.mean(0) @ vectors.T)
        scores = (strength - strength.mean(-1, keepdim=True)) / _spread(strength)
        pick = scores.abs().amax(0).topk(min(self.n_concepts, len(vectors))).indices
        importances = scores[:, pick]
        return ConceptVectors(vectors[pick], importances if weight.dim() == 2 else importances[0])


def _spread(values: Tensor) -> Tensor:
    """The standard deviation; 1 where there is nothing to scale."""
    spread = values.std(-1, correction=0, keepdim=True)
    return spread + (spread == 0)
