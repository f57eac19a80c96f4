"""Explainers: one file per family, all through one door `(task, key) -> Explanation`.

Every class and function of these files can be imported from here; only its own file is loaded then.
"""

from typing import TYPE_CHECKING

from veridical.explainers.base import Explainer as Explainer
from veridical.explainers.base import applicable as applicable
from veridical.explainers.base import register as register
from veridical.explainers.base import registry as registry
from veridical.explainers.function import FunctionExplainer as FunctionExplainer
from veridical.explainers.function import as_explainer as as_explainer
from veridical.name_index import names_on_demand

if TYPE_CHECKING:
    from veridical.explainers.adapters import from_captum, from_shap, from_zennit  # noqa: F401
    from veridical.explainers.transforms import degrade, shuffle, top_k  # noqa: F401

__getattr__, __dir__ = names_on_demand(__name__)
