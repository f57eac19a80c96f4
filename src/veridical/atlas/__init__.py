"""The atlas: what every metric can see on every kind of input, measured where the right answer is known."""

from veridical.atlas.bench import SIZES, TASKS, Size
from veridical.atlas.result import Atlas, load
from veridical.atlas.run import measure
from veridical.atlas.schema import schema

__all__ = ["SIZES", "TASKS", "Atlas", "Size", "load", "measure", "schema"]
