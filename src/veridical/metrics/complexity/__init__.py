"""Complexity: how few features carry the map?"""

from veridical.metrics.complexity.complexity import Complexity
from veridical.metrics.complexity.effective_complexity import EffectiveComplexity
from veridical.metrics.complexity.sparseness import Sparseness

__all__ = ["Complexity", "EffectiveComplexity", "Sparseness"]
