"""Localisation: does relevance lie on the object?"""

from veridical.metrics.localisation.attribution_localisation import AttributionLocalisation
from veridical.metrics.localisation.focus import Focus
from veridical.metrics.localisation.localisation_auc import LocalisationAuc
from veridical.metrics.localisation.pointing_game import PointingGame
from veridical.metrics.localisation.relevance_mass_accuracy import RelevanceMassAccuracy
from veridical.metrics.localisation.relevance_rank_accuracy import RelevanceRankAccuracy
from veridical.metrics.localisation.top_k_intersection import TopKIntersection

__all__ = [
    "AttributionLocalisation",
    "Focus",
    "LocalisationAuc",
    "PointingGame",
    "RelevanceMassAccuracy",
    "RelevanceRankAccuracy",
    "TopKIntersection",
]
