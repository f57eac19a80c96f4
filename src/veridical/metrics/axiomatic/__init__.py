"""Axiomatic: does the explanation keep a rule that it should keep by definition?"""

from veridical.metrics.axiomatic.completeness import Completeness
from veridical.metrics.axiomatic.input_invariance import InputInvariance
from veridical.metrics.axiomatic.non_sensitivity import NonSensitivity

__all__ = ["Completeness", "InputInvariance", "NonSensitivity"]
