"""Audit: all five systems on one model, and a verdict with its uncertainty."""

from typing import TYPE_CHECKING

from veridical.core.lazy import lazy_names

if TYPE_CHECKING:
    from veridical.auditing.check import Check, Checks, check_model
    from veridical.auditing.effort import EFFORTS, Effort
    from veridical.auditing.evidence import Test
    from veridical.auditing.forecast import Forecast
    from veridical.auditing.recheck import Baseline, Recheck
    from veridical.auditing.result import Audit
    from veridical.auditing.run import audit
    from veridical.auditing.training_rows import RowsAudit, RowsPlace, audit_training_rows
    from veridical.auditing.verdict import Field, MetricRole, Pair, Place, Verdict, decide

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "audit": "veridical.auditing.run",
        "Audit": "veridical.auditing.result",
        "Test": "veridical.auditing.evidence",
        **dict.fromkeys(("Baseline", "Recheck"), "veridical.auditing.recheck"),
        "check_model": "veridical.auditing.check",
        "Forecast": "veridical.auditing.forecast",
        **dict.fromkeys(("Effort", "EFFORTS"), "veridical.auditing.effort"),
        **dict.fromkeys(("Check", "Checks"), "veridical.auditing.check"),
        **dict.fromkeys(
            ("RowsAudit", "RowsPlace", "audit_training_rows"), "veridical.auditing.training_rows"
        ),
        **dict.fromkeys(
            ("Field", "MetricRole", "Pair", "Place", "Verdict", "decide"), "veridical.auditing.verdict"
        ),
    },
)

__all__ = [
    "Audit",
    "audit",
    "Effort",
    "EFFORTS",
    "Verdict",
    "Place",
    "MetricRole",
    "Pair",
    "Test",
    "Forecast",
    "Field",
    "Check",
    "Checks",
    "decide",
    "Baseline",
    "Recheck",
    "check_model",
    "RowsAudit",
    "RowsPlace",
    "audit_training_rows",
]
