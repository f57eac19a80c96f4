"""Audit: all five systems on one model, and a verdict with its uncertainty."""

from typing import TYPE_CHECKING

from veridical.audit.api import audit
from veridical.audit.effort import EFFORTS, Effort
from veridical.name_index import names_on_demand

if TYPE_CHECKING:
    from veridical.audit.checks import Check, Checks, check_model
    from veridical.audit.evidence import Test
    from veridical.audit.result import Audit
    from veridical.audit.verdict import Field, Judge, Pair, Place, Verdict, decide

__getattr__, __dir__ = names_on_demand(__name__)

__all__ = [
    "Audit",
    "audit",
    "Effort",
    "EFFORTS",
    "Verdict",
    "Place",
    "Judge",
    "Pair",
    "Test",
    "Field",
    "Check",
    "Checks",
    "check_model",
    "decide",
]
