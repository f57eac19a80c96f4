"""Methods that factorise embeddings: PCA, ICA, K-Means, NMF, ICE, CRAFT, CDISCO, sparse autoencoders."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from veridical.concepts.concepts import Concepts
from veridical.concepts.dictionary_training import TopK, train
from veridical.concepts.embeddings import Embeddings, Head
from veridical.concepts.methods.base import ConceptMethod, ConceptVectors, check_count, check_embeddings
from veridical.concepts.solvers import nnls
from veridical.core.allowed import MANY, Count, NotNegative, PartOf, Positive, Within
from veridical.core.key import Key, as_key, normal, uniform


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


def unmixing(white: Tensor, key: Key, steps: int) -> Tensor:
    """FastICA on whitened rows (n, K) by scikit-learn: all components at once, contrast log cosh."""
    from sklearn.decomposition import FastICA

    width = white.shape[1]
    if len(white) < 2:  # nothing tells the components of one row apart
        return torch.eye(width).to(white)
    start = normal(key, torch.arange(width), 0, width, torch.float64).numpy()
    solver = FastICA(whiten=False, w_init=start, max_iter=steps, tol=1e-6)
    with _quiet():
        return torch.from_numpy(solver.fit(white.cpu().numpy()).components_).to(white)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warning that the last of many small steps was not made: it decides nothing."""
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


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


def kmeans(rows: Tensor, count: int, key: Key, starts: int = 4, steps: int = 100) -> tuple[Tensor, Tensor]:
    """Centres (K, D) and the cluster of each row by scikit-learn: the best of some starts by inertia."""
    from sklearn import cluster

    given, tries = rows.cpu().numpy(), []
    for start in range(starts):
        first = spread_starts(rows, count, key / start).cpu().numpy()
        solver = cluster.KMeans(count, init=first, n_init=1, max_iter=steps, tol=0.0, algorithm="lloyd")
        with _quiet():
            tries.append(solver.fit(given))
    best = min(tries, key=lambda found: found.inertia_)
    return torch.from_numpy(best.cluster_centers_).to(rows), torch.from_numpy(best.labels_).long()


@dataclass(frozen=True)
class KMeans(ConceptMethod):
    """Centres of K clusters; codes are coordinates in the centres (`pinv(V) h`), importances `f . v`."""

    name = "kmeans"
    stochastic = True
    overcomplete = True
    starts: Count = 4
    """Starts, of which the best clustering is kept."""

    def find(self, rows: Tensor, weight: Tensor, key: Key) -> ConceptVectors:
        return ConceptVectors(kmeans(rows, self.n_concepts, key, self.starts)[0])


def nmf(rows: Tensor, count: int, steps: int = 1000, ridge: float = 0.0) -> tuple[Tensor, Tensor]:
    """`rows ~ U W` with `U, W >= 0`, by scikit-learn's coordinate descent; gives U (n, K) and W (K, D).

    Minimises `||X - U W||^2 / 2 + ridge (D ||U||^2 + n ||W||^2) / 2`.
    """
    from sklearn import decomposition

    solver = decomposition.NMF(count, init="nndsvda", tol=1e-6, max_iter=steps, alpha_W=ridge, random_state=0)
    with _quiet():
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


def sobol_total(pull: Tensor, designs: int | None = None) -> Tensor:
    """Total Sobol indices (N, K) of `y(m) = sum_k m_k pull_k` under masks m ~ U[0, 1]^K.

    `y` is a sum of independent terms, so that the index of each is its share of the variance,
    `pull_k^2 / sum pull^2`. With designs they are estimated by Jansen on Halton's points,
    `S_k = sum_j (y(a_j) - y(a_j with k from b_j))^2 / (2 n var y)`: no masked embedding has to be built for
    that either. Rows without any pull are 0.
    """
    if designs is None:
        moved = pull.square()
        variance = moved.sum(-1, keepdim=True)
    else:
        from scipy.stats import qmc

        # from the second point on: the first is the origin
        halton = qmc.Halton(2 * pull.shape[1], scramble=False).fast_forward(1)
        points = torch.from_numpy(halton.random(designs)).to(pull.device)
        a, b = points.chunk(2, 1)
        moved = (a - b).square().mean(0) / 2 * pull.square()
        variance = (pull @ a.T).var(-1, correction=0, keepdim=True)
    return torch.where(variance > 0, moved / variance.clamp(min=1e-300), 0.0)


@dataclass(frozen=True)
class CRAFT(ConceptMethod):
    """CRAFT (Fel et al. 2023): NMF with a ridge, non-negative codes, Sobol total indices as importances.

    Fit it on `crop_embeddings(split, train images, size)`. On a linear head the index is known exactly,
    `(u_k f . w_k)^2` as a share of its sum; `designs=32` estimates it as the paper does, by Jansen.
    """

    name = "craft"
    fits_on = "crops"
    nonnegative = True
    reading = "nonnegative"
    ridge: NotNegative = 1e-2
    """Weight of the ridge on both factors."""
    designs: Annotated[int, Within(2, MANY)] | None = None
    """Points at which the indices are estimated; None takes their exact values."""
    steps: Count = 1000
    """Steps of the solver at most."""
    crop_share: PartOf = 0.5
    """Side of a crop as a share of the image's shorter side, where no other crops are given."""

    def find(self, rows: Tensor, weight: Tensor, key: Key) -> ConceptVectors:
        parts = _living(nmf(rows, self.n_concepts, self.steps, self.ridge)[1])
        if not len(parts):  # the ridge outweighs embeddings as small as these
            return ConceptVectors(parts)
        codes = nnls((parts @ parts.T)[None], (rows @ parts.T)[None])[0]
        weights = weight if weight.dim() == 2 else weight[None]
        found = [sobol_total(codes * pull, self.designs).mean(0) for pull in weights @ parts.T]
        return ConceptVectors(parts, torch.stack(found) if weight.dim() == 2 else found[0])


@dataclass(frozen=True)
class SAE(ConceptMethod):
    """A sparse autoencoder of `n_concepts` atoms per output, trained on all embeddings at every position.

    TopK keeps `n_concepts` atoms active (Gao et al. 2025); others are trained by `vd.dictionaries.train` and
    compared as they are. Atoms have length 1 after every step. Atoms that were
    not active since the last check start anew along what is worst explained, eight times in the first half of
    training (Bricken et al. 2023): of 1,000 atoms for embeddings of LeNet under a random head of 200 outputs
    721 were dead without that and 108 with it, at 3% more error. A note counts those dead at the end.
    """

    name = "sae"
    stochastic = True
    fits_on = "positions"
    overcomplete = True
    steps: Count = 2000
    """Steps of training."""
    batch: Count = 512
    """Embeddings in a step."""
    rate: Positive = 1e-3
    """Adam's learning rate at the start; it falls to 0 along a cosine."""

    def fit(self, embeddings: Embeddings, head: Head, seed: int | Key = 0) -> Concepts:
        """Train, then read atoms as concepts of every output."""
        check_embeddings(self, embeddings, head, False)
        width, rows = self.n_concepts * head.n_outputs, embeddings.vectors
        check_count(self, len(rows))
        recipe = TopK(width, self.steps, self.batch, self.rate, active=self.n_concepts)
        trained = train(rows, recipe, as_key(seed) / self.name, progress=False).dictionary
        fired = torch.zeros(width, dtype=torch.bool, device=rows.device)
        for part in rows.split(4096):
            fired |= (trained.encode(part) != 0).any(0)
        note = f"{int((~fired).sum())} of {width} atoms are never active on the train rows"
        return replace(trained.concepts(head, self.name), notes=(note,))
