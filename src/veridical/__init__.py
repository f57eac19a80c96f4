"""veridical: how faithful is this explanation to the model it explains, and can that number be trusted?"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from veridical import errors, fidelity, fill, functional, gef, meta, qge, tasks
from veridical._version import __version__
from veridical.api import evaluate, explain, explainers, metrics, register, score
from veridical.audit import Audit, audit
from veridical.evaluation import Evaluation
from veridical.explainers import Explainer, applicable
from veridical.explanation import Explanation
from veridical.gef import GEF, FastGEF, visualise
from veridical.meta import meta_evaluate
from veridical.metrics.base import ExplainerMetric, Metric, Outcome
from veridical.predictor import Plan
from veridical.qge import QGE, QRand
from veridical.rng import Key
from veridical.scores import Cost, Curve, Direction, Scores
from veridical.space import Space
from veridical.task import Task

if TYPE_CHECKING:
    from veridical import loading, study, surf

_ON_FIRST_USE = ("loading", "study", "surf")  # nothing else here needs them, and importing takes its time


def __getattr__(name: str) -> ModuleType:
    if name in _ON_FIRST_USE:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_ON_FIRST_USE})


__all__ = [
    "GEF",
    "Audit",
    "Cost",
    "Curve",
    "Direction",
    "Evaluation",
    "Explainer",
    "ExplainerMetric",
    "Explanation",
    "FastGEF",
    "Key",
    "Metric",
    "Outcome",
    "Plan",
    "QGE",
    "QRand",
    "Scores",
    "Space",
    "Task",
    "__version__",
    "applicable",
    "audit",
    "errors",
    "evaluate",
    "explain",
    "explainers",
    "fidelity",
    "fill",
    "functional",
    "gef",
    "loading",
    "meta",
    "meta_evaluate",
    "metrics",
    "qge",
    "register",
    "score",
    "study",
    "surf",
    "tasks",
    "visualise",
]
