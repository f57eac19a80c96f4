"""GEF and Fast-GEF: does the explanation move as the model moves, under weight noise?"""

from veridical.gef.codes import ConceptRelevance, LayerCodes, at_neuron, layer_activations
from veridical.gef.iso_gef import Evidence, IsoSigma, evidence, iso_sigma, joined_scores, with_draws_for
from veridical.gef.metric import GEF, FastGEF, gef_score
from veridical.gef.model_assumptions import Assumptions, assumptions
from veridical.gef.noise_path import NoisePath, find_path
from veridical.gef.perturbation_log import PerturbationLog, incomplete, log_weight_noise
from veridical.gef.plots import plot_path, plot_scores_by_explainer, quadrants
from veridical.gef.visualisation import (
    FeatureVisualisation,
    Maco,
    class_task,
    plot_classes,
    visualise,
)

__all__ = [
    "GEF",
    "Assumptions",
    "ConceptRelevance",
    "Evidence",
    "FastGEF",
    "FeatureVisualisation",
    "IsoSigma",
    "LayerCodes",
    "Maco",
    "NoisePath",
    "PerturbationLog",
    "assumptions",
    "at_neuron",
    "class_task",
    "evidence",
    "find_path",
    "gef_score",
    "incomplete",
    "iso_sigma",
    "joined_scores",
    "layer_activations",
    "log_weight_noise",
    "plot_classes",
    "plot_path",
    "plot_scores_by_explainer",
    "quadrants",
    "visualise",
    "with_draws_for",
]
