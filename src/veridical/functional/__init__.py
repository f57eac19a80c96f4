"""Pure tensor maths along the last dimension: any batch in front, float64 inside, `where=` masks."""

from .bootstrap import Interval, bootstrap_interval
from .concentration import entropy, gini, histogram_entropy
from .correlation import centred_ranks, cosine, has_spread, partial_rank_correlation, pearson, spearman
from .curves import area_under_curve
from .distances import cosine_distance, euclidean, rms_normalise
from .grid import round_to_grid
from .image_similarity import ssim
from .isotonic import isotonic_fit
from .kendall import kendall_tau_b
from .multiple import holm
from .ranks import average_ranks, positions
from .wilcoxon import SignedRank, signed_rank

__all__ = [
    "Interval",
    "SignedRank",
    "area_under_curve",
    "average_ranks",
    "bootstrap_interval",
    "centred_ranks",
    "cosine",
    "cosine_distance",
    "entropy",
    "euclidean",
    "gini",
    "has_spread",
    "histogram_entropy",
    "holm",
    "isotonic_fit",
    "kendall_tau_b",
    "partial_rank_correlation",
    "pearson",
    "positions",
    "rms_normalise",
    "round_to_grid",
    "signed_rank",
    "spearman",
    "ssim",
]
