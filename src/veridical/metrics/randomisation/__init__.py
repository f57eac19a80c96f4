"""Randomisation: does the explanation depend on the model and on the output it is asked about?"""

from veridical.metrics.randomisation.efficient_mprt import EfficientMprt
from veridical.metrics.randomisation.mprt import Mprt
from veridical.metrics.randomisation.random_logit import RandomLogit
from veridical.metrics.randomisation.smooth_mprt import SmoothMprt

__all__ = ["EfficientMprt", "Mprt", "RandomLogit", "SmoothMprt"]
