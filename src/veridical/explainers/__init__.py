"""Explainers: one file per family, all through one door `(task, key) -> Explanation`.

Every class and function of these files can be imported from here; only its own file is loaded then.
"""

from typing import TYPE_CHECKING

from veridical.core.lazy import lazy_names, public_names
from veridical.explainers.base import Explainer as Explainer
from veridical.explainers.base import applicable as applicable
from veridical.explainers.base import as_explainer as as_explainer
from veridical.explainers.base import register as register
from veridical.explainers.base import registry as registry

if TYPE_CHECKING:
    from veridical.explainers.adapters import FunctionExplainer as FunctionExplainer
    from veridical.explainers.adapters import from_captum as from_captum
    from veridical.explainers.adapters import from_shap as from_shap
    from veridical.explainers.adapters import from_zennit as from_zennit
    from veridical.explainers.transforms import degrade as degrade
    from veridical.explainers.transforms import shuffle as shuffle
    from veridical.explainers.transforms import top_k as top_k

__getattr__, __dir__ = lazy_names(__name__, public_names(__name__))
