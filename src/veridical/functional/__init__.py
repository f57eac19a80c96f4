"""Pure tensor maths along the last dimension: any batch in front, float64 inside, `where=` masks."""

from veridical.functional._rows import has_spread
from veridical.functional.correlation import (
    average_ranks,
    centred_ranks,
    cosine,
    kendall_tau_b,
    partial_rank_correlation,
    pearson,
    positions,
    spearman,
)
from veridical.functional.maps import (
    cosine_distance,
    entropy,
    euclidean,
    gini,
    histogram_entropy,
    rms_normalise,
    ssim,
)
from veridical.functional.responses import area_under_curve, round_to_grid
from veridical.functional.selection import leading_group, mean_units
from veridical.functional.significance import (
    Interval,
    Settled,
    SignedRank,
    betting_p,
    betting_wealth,
    bootstrap_interval,
    confidence_sequence,
    holm,
    settle,
    signed_rank,
    units_to_settle,
    win_units,
)

__all__ = [
    "Interval",
    "Settled",
    "SignedRank",
    "area_under_curve",
    "average_ranks",
    "betting_p",
    "betting_wealth",
    "bootstrap_interval",
    "centred_ranks",
    "confidence_sequence",
    "cosine",
    "cosine_distance",
    "entropy",
    "euclidean",
    "gini",
    "has_spread",
    "histogram_entropy",
    "holm",
    "kendall_tau_b",
    "leading_group",
    "mean_units",
    "partial_rank_correlation",
    "pearson",
    "positions",
    "rms_normalise",
    "round_to_grid",
    "settle",
    "signed_rank",
    "spearman",
    "ssim",
    "units_to_settle",
    "win_units",
]
