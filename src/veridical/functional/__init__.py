"""Pure tensor maths along the last dimension: any batch in front, float64 inside, `where=` masks."""

from ._rows import has_spread
from .bootstrap import Interval, bootstrap_interval
from .concentration import entropy, gini, histogram_entropy
from .correlation import centred_ranks, cosine, partial_rank_correlation, pearson, spearman
from .distances import cosine_distance, euclidean, rms_normalise
from .image_similarity import ssim
from .isotonic import isotonic_fit
from .kendall import kendall_tau_b
from .ranks import average_ranks, positions
from .responses import area_under_curve, round_to_grid
from .selection import GroupStep, LeadingGroup, best_probability, leading_group, mean_units
from .significance import SignedRank, betting_p, betting_wealth, holm, signed_rank, win_units

__all__ = [
    "GroupStep",
    "Interval",
    "LeadingGroup",
    "SignedRank",
    "area_under_curve",
    "average_ranks",
    "best_probability",
    "betting_p",
    "betting_wealth",
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
    "leading_group",
    "mean_units",
    "partial_rank_correlation",
    "pearson",
    "positions",
    "rms_normalise",
    "round_to_grid",
    "signed_rank",
    "spearman",
    "ssim",
    "win_units",
]
