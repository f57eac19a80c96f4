"""Studies: a grid of tasks, explainers, metrics and seeds in a file, each cell computed once."""

from veridical.study.cells import Context, Job, Result
from veridical.study.executors import Executor, InProcess, LocalProcesses
from veridical.study.tracking import track
from veridical.study.verbs import open, resume, run, verify

__all__ = [
    "Context",
    "Executor",
    "InProcess",
    "Job",
    "LocalProcesses",
    "Result",
    "open",
    "resume",
    "run",
    "track",
    "verify",
]
