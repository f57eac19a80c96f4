"""veridical: how faithful is this explanation to the model it explains, and can that number be trusted?"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from veridical import errors, functional
from veridical._version import __version__
from veridical.api import evaluate, explain, explainers, metrics, register, score
from veridical.audit import audit
from veridical.explainers.base import Explainer, applicable
from veridical.masking import fills as fill
from veridical.metrics.base import ExplainerMetric, Metric, Outcome
from veridical.model.cost import Cost
from veridical.model.predictor import Plan
from veridical.name_index import names_on_demand
from veridical.random.keyed import Key
from veridical.values.evaluation import Evaluation
from veridical.values.explanation import Explanation
from veridical.values.scores import Curve, Direction, Scores
from veridical.values.space import Space
from veridical.values.task import Task

if TYPE_CHECKING:
    from veridical import dictionaries, fidelity, gef, loading, meta, qge, study, surf, tasks
    from veridical.audit import Audit
    from veridical.explainers.adapters import from_captum, from_shap, from_zennit
    from veridical.gef import GEF, FastGEF
    from veridical.gef.visualise import visualise
    from veridical.meta import meta_evaluate
    from veridical.qge import QGE, QRand

__getattr__, __dir__ = names_on_demand(
    __name__,
    {
        "Audit": "veridical.audit.result",
        "FastGEF": "veridical.gef.metric",
        "GEF": "veridical.gef.metric",
        "QGE": "veridical.qge.gap",
        "QRand": "veridical.qge.random_baseline",
        "from_captum": "veridical.explainers.adapters",
        "from_shap": "veridical.explainers.adapters",
        "from_zennit": "veridical.explainers.adapters",
        "meta_evaluate": "veridical.meta.evaluate",
        "visualise": "veridical.gef.visualise",
    },
)

# Modules that moved into folders: their old names, which stood in the documentation, import the same module
_MOVED = {
    "explanation": "values.explanation",
    "fill": "masking.fills",
    "imputation": "masking.mask_aware_fills",
    "lots": "random.subset_draws",
    "mask_rules": "masking.rules",
    "predictor": "model.predictor",
    "probe": "masking.probe",
    "rng": "random.keyed",
    "scores": "values.scores",
    "space": "values.space",
    "task": "values.task",
}
for _old, _new in _MOVED.items():
    sys.modules[f"{__name__}.{_old}"] = import_module(f"{__name__}.{_new}")

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
    "dictionaries",
    "errors",
    "evaluate",
    "explain",
    "explainers",
    "fidelity",
    "fill",
    "from_captum",
    "from_shap",
    "from_zennit",
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
