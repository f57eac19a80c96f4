"""Meta-evaluation: which metric deserves to be believed, for this model and these explainers?"""

from veridical.meta.consistency import Consistencies, consistencies, meta_consistency
from veridical.meta.evaluate import meta_evaluate
from veridical.meta.result import MetaEvaluation, Reliability
from veridical.meta.sanity import Different, PredictionHolds, Same
from veridical.meta.strength import calibrate
from veridical.meta.uses import (
    by_category,
    category_convergence,
    explainer_dependence,
    ranking_consistency,
    search_settings,
    side_by_side,
)

__all__ = [
    "Consistencies",
    "Different",
    "MetaEvaluation",
    "PredictionHolds",
    "Reliability",
    "Same",
    "by_category",
    "calibrate",
    "category_convergence",
    "consistencies",
    "explainer_dependence",
    "meta_consistency",
    "meta_evaluate",
    "ranking_consistency",
    "search_settings",
    "side_by_side",
]
