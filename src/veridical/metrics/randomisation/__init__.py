"""Randomisation: does the explanation depend on the model and on the output it is asked about?"""

from veridical.metrics.randomisation.efficient_mprt import EfficientMPRT
from veridical.metrics.randomisation.mprt import MPRT
from veridical.metrics.randomisation.random_logit import RandomLogit
from veridical.metrics.randomisation.smooth_mprt import SmoothMPRT

__all__ = ["EfficientMPRT", "MPRT", "RandomLogit", "SmoothMPRT"]
