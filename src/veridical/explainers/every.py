"""Every explainer there is, by its class; importing this module makes all of them known by name."""

from veridical.explainers.ablation import FeatureAblation
from veridical.explainers.adapters import from_captum, from_shap, from_zennit
from veridical.explainers.attention import AttentionRollout, GradientXAttention
from veridical.explainers.backprop import Deconvolution, GuidedBackprop
from veridical.explainers.cam import GradCam, GradCamPlusPlus, LayerCam, ScoreCam
from veridical.explainers.controls import Constant, Random, RandomK, Sobel
from veridical.explainers.deeplift import DeepLift, DeepLiftShap
from veridical.explainers.function import FunctionExplainer, as_explainer
from veridical.explainers.gradients import Gradient, InputXGradient, IntegratedGradients, Saliency
from veridical.explainers.guided_grad_cam import GuidedGradCam
from veridical.explainers.kernel_shap import KernelShap
from veridical.explainers.lime import Lime
from veridical.explainers.lrp import Lrp, LrpAlphaBeta, LrpEpsilon, LrpGamma, LrpZPlus
from veridical.explainers.occlusion import Occlusion
from veridical.explainers.partition_shap import PartitionShap
from veridical.explainers.permutation_importance import PermutationImportance
from veridical.explainers.rise import Rise
from veridical.explainers.sensitivity_indices import Hsic, Sobol
from veridical.explainers.shap_gradients import ExpectedGradients, GradientShap
from veridical.explainers.shapley_sampling import ShapleySampling
from veridical.explainers.smoothing import SmoothGrad, SmoothGradSquared, VarGrad
from veridical.explainers.transforms import Degraded, Inverted, Shuffled, TopK, degrade, shuffle, top_k
from veridical.explainers.tree_shap import TreeShap

__all__ = [
    "AttentionRollout",
    "Constant",
    "Deconvolution",
    "DeepLift",
    "DeepLiftShap",
    "Degraded",
    "ExpectedGradients",
    "FeatureAblation",
    "FunctionExplainer",
    "GradCam",
    "GradCamPlusPlus",
    "Gradient",
    "GradientShap",
    "GradientXAttention",
    "GuidedBackprop",
    "GuidedGradCam",
    "Hsic",
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
    "PermutationImportance",
    "Random",
    "RandomK",
    "Rise",
    "Saliency",
    "ScoreCam",
    "ShapleySampling",
    "Shuffled",
    "SmoothGrad",
    "SmoothGradSquared",
    "Sobel",
    "Sobol",
    "TopK",
    "TreeShap",
    "VarGrad",
    "as_explainer",
    "degrade",
    "from_captum",
    "from_shap",
    "from_zennit",
    "shuffle",
    "top_k",
]
