"""QGE: how much better than its own inverse, and where it stands among all explanations."""

from veridical.metrics.faithfulness._common import RankPath
from veridical.qge.gap import QGE, QRand, metric_from_json
from veridical.qge.kept_features import KeptFeatures
from veridical.qge.paths import path_of
from veridical.qge.standing import Standing, standing
from veridical.qge.study import RankingStudy, exhaustive_study, rankings_of, sampled_study

__all__ = [
    "QGE",
    "KeptFeatures",
    "QRand",
    "RankPath",
    "RankingStudy",
    "Standing",
    "exhaustive_study",
    "metric_from_json",
    "path_of",
    "rankings_of",
    "sampled_study",
    "standing",
]
