"""Audit: all five systems on one model, and a verdict with its uncertainty."""

from typing import TYPE_CHECKING

from veridical.audit.api import audit
from veridical.audit.effort import EFFORTS, Effort
from veridical.first_use import on_first_use

if TYPE_CHECKING:
    from veridical.audit.checks import Check, Checks, check_model
    from veridical.audit.result import Audit
    from veridical.audit.verdict import Judge, Pair, Place, Verdict, decide

__getattr__, __dir__ = on_first_use(
    __name__,
    {
        "checks": ("Check", "Checks", "check_model"),
        "result": ("Audit",),
        "verdict": ("Judge", "Pair", "Place", "Verdict", "decide"),
    },
)

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
