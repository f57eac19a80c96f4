"""Explainers: one file a family, all through one door `(task, key) -> Explanation`."""

from veridical.explainers.base import Explainer, applicable, register, registry
from veridical.explainers.controls import Random
from veridical.explainers.function import FunctionExplainer, as_explainer
from veridical.explainers.gradients import Gradient, InputXGradient, IntegratedGradients, Saliency
from veridical.explainers.occlusion import Occlusion

__all__ = [
    "Explainer",
    "FunctionExplainer",
    "Gradient",
    "InputXGradient",
    "IntegratedGradients",
    "Occlusion",
    "Random",
    "Saliency",
    "applicable",
    "as_explainer",
    "register",
    "registry",
]
