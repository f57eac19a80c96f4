"""Metrics: one file a metric, each a short function of responses or maps."""

from veridical.metrics.base import (
    AnyMetric,
    ExplainerMetric,
    Metric,
    Outcome,
    applicable,
    register,
    registry,
)
from veridical.metrics.complexity import Sparseness
from veridical.metrics.faithfulness import FaithfulnessCorrelation, PixelFlipping

__all__ = [
    "AnyMetric",
    "ExplainerMetric",
    "FaithfulnessCorrelation",
    "Metric",
    "Outcome",
    "PixelFlipping",
    "Sparseness",
    "applicable",
    "register",
    "registry",
]
