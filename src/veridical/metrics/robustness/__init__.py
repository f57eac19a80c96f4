"""Robustness: does the explanation stay when the input hardly moves?"""

from veridical.metrics.robustness.avg_sensitivity import AvgSensitivity
from veridical.metrics.robustness.consistency import Consistency
from veridical.metrics.robustness.continuity import Continuity
from veridical.metrics.robustness.local_lipschitz import LocalLipschitz
from veridical.metrics.robustness.max_sensitivity import MaxSensitivity
from veridical.metrics.robustness.relative_input_stability import RelativeInputStability
from veridical.metrics.robustness.relative_output_stability import RelativeOutputStability
from veridical.metrics.robustness.relative_representation_stability import RelativeRepresentationStability

__all__ = [
    "AvgSensitivity",
    "Consistency",
    "Continuity",
    "LocalLipschitz",
    "MaxSensitivity",
    "RelativeInputStability",
    "RelativeOutputStability",
    "RelativeRepresentationStability",
]
