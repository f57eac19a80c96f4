"""Non-negative matrix factorisation: embeddings as sums of parts, and two methods that use it directly."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from veridical.concepts.methods.base import ConceptMethod, Found
from veridical.core.allowed import Count
from veridical.core.key import Key


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

    def find(self, rows: Tensor, weight: Tensor, key: Key) -> Found:
        return Found(_living(nmf(rows, self.n_concepts, self.steps)[1]))


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
