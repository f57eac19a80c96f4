"""The types that nearly every metric speaks of, to be imported from one place."""

from veridical.explainers.base import Explainer
from veridical.masking.fills import Fill
from veridical.model.output_heads import Response
from veridical.random.keyed import Key
from veridical.values.explanation import Explanation
from veridical.values.scores import Curve, Direction, Scores
from veridical.values.task import Task

__all__ = ["Curve", "Direction", "Explainer", "Explanation", "Fill", "Key", "Response", "Scores", "Task"]
