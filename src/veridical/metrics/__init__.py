"""Metrics: one file a metric, each a short function of responses or maps."""

from typing import TYPE_CHECKING

from veridical.first_use import on_first_use
from veridical.metrics.base import AnyMetric as AnyMetric
from veridical.metrics.base import ExplainerMetric as ExplainerMetric
from veridical.metrics.base import Metric as Metric
from veridical.metrics.base import Outcome as Outcome
from veridical.metrics.base import applicable as applicable
from veridical.metrics.base import register as register
from veridical.metrics.base import registry as registry

if TYPE_CHECKING:
    from veridical.metrics.every import *  # noqa: F403 (what the next line finds when it is asked for)

__getattr__, __dir__ = on_first_use(__name__, {"every": ("*",)})
