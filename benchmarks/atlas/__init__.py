"""Measuring the atlas: every metric on every kind of input, asked where the right answer is known.

    python -m benchmarks.atlas FOLDER --size tiny

The package only reads it (`vd.atlas.load`). Tests: benchmarks/atlas/tests.
"""

from benchmarks.atlas.bench import SIZES, TASKS, Size
from benchmarks.atlas.run import measure

__all__ = ["SIZES", "TASKS", "Size", "measure"]
