"""Metrics: one file per metric, each a short function of responses or maps.

Every metric's class can be imported from here; only its own file is loaded then.
"""

from veridical.core.lazy import lazy_names, public_names
from veridical.metrics.base import AnyMetric as AnyMetric
from veridical.metrics.base import ExplainerMetric as ExplainerMetric
from veridical.metrics.base import Metric as Metric
from veridical.metrics.base import Outcome as Outcome
from veridical.metrics.base import applicable as applicable
from veridical.metrics.base import register as register
from veridical.metrics.base import registry as registry

__getattr__, __dir__ = lazy_names(__name__, public_names(__name__))
