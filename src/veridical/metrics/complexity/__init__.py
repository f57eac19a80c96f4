"""Complexity: how few features carry the map?"""

from veridical.metrics.complexity.sparseness import Sparseness

__all__ = ["Sparseness"]
