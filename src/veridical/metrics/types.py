"""The types that nearly every metric speaks of, to be imported from one place."""

from veridical.core.key import Key
from veridical.explainers.base import Explainer
from veridical.models.context import Context
from veridical.models.output_heads import Response
from veridical.perturb.fills import Fill
from veridical.values.explanation import Explanation
from veridical.values.scores import Curve, Direction
from veridical.values.task import Task

__all__ = ["Context", "Curve", "Direction", "Explainer", "Explanation", "Fill", "Key", "Response", "Task"]
