"""GEF and Fast-GEF: does the explanation move as the model moves, under weight noise?"""

from veridical.gef.assumptions import Assumptions, assumptions
from veridical.gef.classes import class_task
from veridical.gef.codes import LayerCodes, layer_activations
from veridical.gef.concept_relevance import ConceptRelevance
from veridical.gef.feature_visualisation import DeepViz, FeatureVisualisation, Fourier, Maco
from veridical.gef.iso_evidence import Evidence, evidence, iso_sigma
from veridical.gef.iso_metric import IsoSigma, with_draws_for
from veridical.gef.metric import GEF, FastGEF
from veridical.gef.neurons import at_neuron
from veridical.gef.noise_path import NoisePath
from veridical.gef.outcome import gef_score
from veridical.gef.path import find_path
from veridical.gef.plots import plot_path, plot_scores_by_explainer
from veridical.gef.visualise import Visualisation, visualise

__all__ = [
    "GEF",
    "Assumptions",
    "ConceptRelevance",
    "DeepViz",
    "Evidence",
    "FastGEF",
    "FeatureVisualisation",
    "Fourier",
    "IsoSigma",
    "LayerCodes",
    "Maco",
    "NoisePath",
    "Visualisation",
    "assumptions",
    "at_neuron",
    "class_task",
    "evidence",
    "find_path",
    "gef_score",
    "iso_sigma",
    "layer_activations",
    "plot_path",
    "plot_scores_by_explainer",
    "visualise",
    "with_draws_for",
]
