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
    from veridical import atlas, dictionaries, fidelity, gef, loading, meta, qge, study, surf, tasks
    from veridical.audit import Audit
    from veridical.explainers.adapters import from_captum, from_shap, from_zennit
    from veridical.gef import GEF, FastGEF
    from veridical.gef.visualise import visualise
    from veridical.loading.estimate import estimate
    from veridical.masking.inner_units import Atoms, Blocks, Channels, Heads, Mlps
    from veridical.masking.interventions import Counterfactual, MeanOver, Zeroed
    from veridical.meta import meta_evaluate
    from veridical.qge import QGE, QRand
    from veridical.tasks.generation import Generation
    from veridical.tasks.prompt_checks import circular_pairs, prompt_checks
    from veridical.tasks.switching import switch

__getattr__, __dir__ = names_on_demand(
    __name__,
    {
        "Audit": "veridical.audit.result",
        "FastGEF": "veridical.gef.metric",
        "GEF": "veridical.gef.metric",
        "Generation": "veridical.tasks.generation",
        "circular_pairs": "veridical.tasks.prompt_checks",
        "estimate": "veridical.loading.estimate",
        "prompt_checks": "veridical.tasks.prompt_checks",
        "switch": "veridical.tasks.switching",
        **dict.fromkeys(("Atoms", "Blocks", "Channels", "Heads", "Mlps"), "veridical.masking.inner_units"),
        **dict.fromkeys(("Counterfactual", "MeanOver", "Zeroed"), "veridical.masking.interventions"),
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
    "Atoms",
    "Audit",
    "Blocks",
    "Channels",
    "Cost",
    "Counterfactual",
    "Curve",
    "Direction",
    "Evaluation",
    "Explainer",
    "ExplainerMetric",
    "Explanation",
    "FastGEF",
    "Generation",
    "Heads",
    "Key",
    "MeanOver",
    "Metric",
    "Mlps",
    "Outcome",
    "Plan",
    "QGE",
    "QRand",
    "Scores",
    "Space",
    "Task",
    "Zeroed",
    "__version__",
    "applicable",
    "atlas",
    "audit",
    "circular_pairs",
    "dictionaries",
    "errors",
    "estimate",
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
    "prompt_checks",
    "qge",
    "register",
    "score",
    "study",
    "surf",
    "switch",
    "tasks",
    "visualise",
]
