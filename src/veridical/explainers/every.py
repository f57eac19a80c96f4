"""Every explainer there is, by its class; importing this module makes all of them known by name."""

from veridical.explainers.ablation import FeatureAblation
from veridical.explainers.adapters import from_captum, from_shap, from_zennit
from veridical.explainers.attention import AttentionRollout, GradientXAttention
from veridical.explainers.backprop import Deconvolution, GuidedBackprop
from veridical.explainers.cam import GradCam, GradCamPlusPlus, LayerCam, ScoreCam
from veridical.explainers.controls import Constant, Random, RandomK, Sobel
from veridical.explainers.deeplift import DeepLift
from veridical.explainers.exact_shapley import ExactShapley
from veridical.explainers.function import FunctionExplainer, as_explainer
from veridical.explainers.gradients import Gradient, InputXGradient, IntegratedGradients, Saliency
from veridical.explainers.kernel_shap import KernelShap
from veridical.explainers.lime import Lime
from veridical.explainers.lrp import Lrp, LrpAlphaBeta, LrpEpsilon, LrpGamma, LrpZPlus
from veridical.explainers.occlusion import Occlusion
from veridical.explainers.partition_shap import PartitionShap
from veridical.explainers.rise import Rise
from veridical.explainers.shap_gradients import ExpectedGradients, GradientShap
from veridical.explainers.smoothing import SmoothGrad, SmoothGradSquared, VarGrad
from veridical.explainers.transforms import Degraded, Inverted, Shuffled, TopK, degrade, shuffle, top_k

__all__ = [
    "AttentionRollout",
    "Constant",
    "Deconvolution",
    "DeepLift",
    "Degraded",
    "ExactShapley",
    "ExpectedGradients",
    "FeatureAblation",
    "FunctionExplainer",
    "GradCam",
    "GradCamPlusPlus",
    "Gradient",
    "GradientShap",
    "GradientXAttention",
    "GuidedBackprop",
    "InputXGradient",
    "IntegratedGradients",
    "Inverted",
    "KernelShap",
    "LayerCam",
    "Lime",
    "Lrp",
    "LrpAlphaBeta",
    "LrpEpsilon",
    "LrpGamma",
    "LrpZPlus",
    "Occlusion",
    "PartitionShap",
    "Random",
    "RandomK",
    "Rise",
    "Saliency",
    "ScoreCam",
    "Shuffled",
    "SmoothGrad",
    "SmoothGradSquared",
    "Sobel",
    "TopK",
    "VarGrad",
    "as_explainer",
    "degrade",
    "from_captum",
    "from_shap",
    "from_zennit",
    "shuffle",
    "top_k",
]
