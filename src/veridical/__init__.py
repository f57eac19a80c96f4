"""veridical: how faithful is this explanation to the model it explains, and can that number be trusted?

The verbs are `explain`, `score`, `evaluate`, `audit` and `check`; what flows between them are `Task`,
`Explanation`, `Scores` and `Evaluation`. Everything else lies one step below (`vd.gef.FastGEF`,
`vd.models.Generation`, `vd.explainers.from_captum`, `vd.study`) and is imported when it is first used.
"""

from typing import TYPE_CHECKING

from veridical._version import __version__ as __version__
from veridical.api import evaluate, explain, list_explainers, list_metrics, register, score
from veridical.core.lazy import lazy_names
from veridical.core.space import Space
from veridical.explainers.base import Explainer
from veridical.metrics.base import Metric
from veridical.models.plan import Plan
from veridical.perturb import fills
from veridical.values.evaluation import Evaluation
from veridical.values.explanation import Explanation
from veridical.values.scores import Scores
from veridical.values.task import Task

if TYPE_CHECKING:
    from veridical import atlas as atlas
    from veridical import auditing as auditing
    from veridical import concepts, dictionaries, fidelity, gef, meta, qge
    from veridical import core as core
    from veridical import data as data
    from veridical import errors as errors
    from veridical import explainers as explainers
    from veridical import functional as functional
    from veridical import metrics as metrics
    from veridical import models as models
    from veridical import perturb as perturb
    from veridical import report as report
    from veridical import study as study
    from veridical import testing as testing
    from veridical import values as values
    from veridical.auditing.recheck import check
    from veridical.auditing.run import audit
    from veridical.data import tasks

__getattr__, __dir__ = lazy_names(
    __name__,
    {"audit": "veridical.auditing.run", "check": "veridical.auditing.recheck", "tasks": "veridical.data"},
)

__all__ = [
    "Evaluation",
    "Explainer",
    "Explanation",
    "Metric",
    "Plan",
    "Scores",
    "Space",
    "Task",
    "audit",
    "check",
    "concepts",
    "dictionaries",
    "evaluate",
    "explain",
    "fidelity",
    "fills",
    "gef",
    "list_explainers",
    "list_metrics",
    "meta",
    "qge",
    "register",
    "score",
    "tasks",
]
