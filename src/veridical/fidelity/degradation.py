"""Explanations made worse on purpose, step by step, so that the right order of explainers is known."""

from __future__ import annotations

from veridical.core.key import Key
from veridical.explainers.transforms import degrade
from veridical.values.explanation import Explanation

RATIOS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


def degraded(explanation: Explanation, ratio: float, repeat: int = 0, key: Key = Key(0)) -> Explanation:  # noqa: B008
    """Permute the scores of a share of the features: those hit at a ratio are hit at every higher one."""
    return degrade(explanation, ratio, key, repeat)
