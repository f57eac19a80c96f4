"""Meta-evaluation: which metric deserves to be believed, for this model and these explainers?"""

from veridical.meta.consistency import Consistencies, consistencies, meta_consistency
from veridical.meta.evaluate import meta_evaluate
from veridical.meta.files import joined, load
from veridical.meta.metric_selection import (
    by_category,
    category_averages,
    category_convergence,
    explainer_dependence,
    ranking_consistency,
    search_settings,
    side_by_side,
)
from veridical.meta.planted_damage import planted_damage
from veridical.meta.plots import area_grid
from veridical.meta.result import ENTRIES, MetaEvaluation, Reliability
from veridical.meta.sanity import Different, PredictionHolds, Same
from veridical.meta.strength import calibrate
from veridical.meta.use_plots import (
    plot_categories,
    plot_convergence,
    plot_explainer_sets,
    plot_settings,
    plot_side_by_side,
    plot_voices,
    plot_wins,
)
from veridical.meta.voices import PlantedDamage, Voice

__all__ = [
    "ENTRIES",
    "Consistencies",
    "Different",
    "MetaEvaluation",
    "PlantedDamage",
    "PredictionHolds",
    "Reliability",
    "Same",
    "Voice",
    "area_grid",
    "by_category",
    "calibrate",
    "category_averages",
    "category_convergence",
    "consistencies",
    "explainer_dependence",
    "joined",
    "load",
    "meta_consistency",
    "meta_evaluate",
    "planted_damage",
    "plot_categories",
    "plot_convergence",
    "plot_explainer_sets",
    "plot_settings",
    "plot_side_by_side",
    "plot_voices",
    "plot_wins",
    "ranking_consistency",
    "search_settings",
    "side_by_side",
]
