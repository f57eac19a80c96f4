"""Audit: all five systems on one model, and a verdict with its uncertainty."""

from veridical.audit.checks import Check, Checks, check_model
from veridical.audit.effort import EFFORTS, Effort
from veridical.audit.result import Audit
from veridical.audit.run import audit
from veridical.audit.verdict import Judge, Pair, Place, Verdict, decide

__all__ = [
    "Audit",
    "audit",
    "Effort",
    "EFFORTS",
    "Verdict",
    "Place",
    "Judge",
    "Pair",
    "Check",
    "Checks",
    "check_model",
    "decide",
]
