"""Studies: a grid of tasks, explainers, metrics and seeds in a file, each cell computed once."""

from veridical.study.cells import Verification, verify
from veridical.study.result import Study
from veridical.study.run import open, resume, run

__all__ = ["Study", "Verification", "open", "resume", "run", "verify"]
