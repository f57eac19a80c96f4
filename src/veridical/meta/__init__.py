"""Meta-evaluation: which metric deserves to be believed, for this model and these explainers?"""

from veridical.meta.admissible import Admissibility, PlantedDamage, planted_damage
from veridical.meta.consistency import Consistencies, consistencies, meta_consistency
from veridical.meta.evaluate import meta_evaluate
from veridical.meta.perturbations import calibrate
from veridical.meta.plots import plot_settings
from veridical.meta.result import ENTRIES, MetaEvaluation, Reliability, joined, load
from veridical.meta.sanity import Different, PredictionHolds, Same
from veridical.meta.selection import by_category, search_settings

__all__ = [
    "ENTRIES",
    "Admissibility",
    "Consistencies",
    "Different",
    "MetaEvaluation",
    "PlantedDamage",
    "PredictionHolds",
    "Reliability",
    "Same",
    "by_category",
    "calibrate",
    "consistencies",
    "joined",
    "load",
    "meta_consistency",
    "meta_evaluate",
    "planted_damage",
    "plot_settings",
    "search_settings",
]
