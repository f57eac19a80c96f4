"""Faithfulness: does the output move when what the map calls relevant is removed?"""

from veridical.metrics.faithfulness.faithfulness_correlation import FaithfulnessCorrelation
from veridical.metrics.faithfulness.pixel_flipping import PixelFlipping

__all__ = ["FaithfulnessCorrelation", "PixelFlipping"]
