"""Studies: a grid of tasks, explainers, metrics and seeds in a file, each cell computed once."""

from veridical.study.cells import Verification, verify
from veridical.study.difference import Difference, diff
from veridical.study.result import Study
from veridical.study.run import open, resume, run

__all__ = ["Difference", "Study", "Verification", "diff", "open", "resume", "run", "verify"]
