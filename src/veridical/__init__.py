"""veridical: how faithful is this explanation to the model it explains, and can that number be trusted?"""

from typing import TYPE_CHECKING, Any

from veridical import errors, functional
from veridical._version import __version__
from veridical.api import evaluate, explain, list_explainers, list_metrics, register, score
from veridical.auditing import audit
from veridical.core.key import Key
from veridical.core.name_index import names_on_demand
from veridical.explainers.base import Explainer, applicable
from veridical.metrics.base import ExplainerMetric, Metric, Outcome
from veridical.models.cost import Cost
from veridical.models.predictor import Plan
from veridical.perturb import fills
from veridical.values.evaluation import Evaluation
from veridical.values.explanation import Explanation
from veridical.values.scores import Curve, Direction, Scores
from veridical.values.space import Space
from veridical.values.task import Task

if TYPE_CHECKING:
    from veridical import atlas, concepts, data, dictionaries, fidelity, gef, meta, qge, study
    from veridical import data as tasks
    from veridical.auditing import Audit
    from veridical.data.estimate import estimate
    from veridical.data.generation import Generation
    from veridical.data.prompt_checks import circular_pairs, prompt_checks
    from veridical.data.switching import switch
    from veridical.explainers.adapters import from_captum, from_shap, from_zennit
    from veridical.gef import GEF, FastGEF
    from veridical.gef.visualise import visualise
    from veridical.meta import meta_evaluate
    from veridical.perturb.inner_units import Atoms, Blocks, Channels, Heads, Mlps
    from veridical.perturb.interventions import Counterfactual, MeanOver, Zeroed
    from veridical.qge import QGE, QRand

_on_demand, __dir__ = names_on_demand(
    __name__,
    {
        "Audit": "veridical.auditing.result",
        "FastGEF": "veridical.gef.metric",
        "GEF": "veridical.gef.metric",
        "Generation": "veridical.data.generation",
        "circular_pairs": "veridical.data.prompt_checks",
        "estimate": "veridical.data.estimate",
        "prompt_checks": "veridical.data.prompt_checks",
        "switch": "veridical.data.switching",
        **dict.fromkeys(("Atoms", "Blocks", "Channels", "Heads", "Mlps"), "veridical.perturb.inner_units"),
        **dict.fromkeys(("Counterfactual", "MeanOver", "Zeroed"), "veridical.perturb.interventions"),
        "QGE": "veridical.qge.gap",
        "QRand": "veridical.qge.random_baseline",
        "from_captum": "veridical.explainers.adapters",
        "from_shap": "veridical.explainers.adapters",
        "from_zennit": "veridical.explainers.adapters",
        "meta_evaluate": "veridical.meta.evaluate",
        "visualise": "veridical.gef.visualise",
    },
)


def __getattr__(name: str) -> Any:
    return _on_demand("data" if name == "tasks" else name)


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
    "list_explainers",
    "fidelity",
    "fills",
    "from_captum",
    "from_shap",
    "from_zennit",
    "functional",
    "gef",
    "data",
    "meta",
    "meta_evaluate",
    "list_metrics",
    "prompt_checks",
    "qge",
    "register",
    "score",
    "study",
    "concepts",
    "switch",
    "tasks",
    "visualise",
]
