"""Metrics: one file per metric, each a short function of responses or maps.

All that the author of a metric needs is imported from here, and every metric's class can be; only its own
file is loaded then.
"""

from veridical.core.allowed import LARGE as LARGE
from veridical.core.allowed import MANY as MANY
from veridical.core.allowed import Between as Between
from veridical.core.allowed import Count as Count
from veridical.core.allowed import NotNegative as NotNegative
from veridical.core.allowed import PartOf as PartOf
from veridical.core.allowed import Positive as Positive
from veridical.core.allowed import Share as Share
from veridical.core.allowed import Within as Within
from veridical.core.key import Key as Key
from veridical.core.lazy import lazy_names, public_names
from veridical.explainers.base import Explainer as Explainer
from veridical.metrics.base import AnyMetric as AnyMetric
from veridical.metrics.base import ExplainerMetric as ExplainerMetric
from veridical.metrics.base import Metric as Metric
from veridical.metrics.base import Outcome as Outcome
from veridical.metrics.base import RankingMetric as RankingMetric
from veridical.metrics.base import applicable as applicable
from veridical.metrics.base import register as register
from veridical.metrics.base import registry as registry
from veridical.models.context import Context as Context
from veridical.models.output_heads import Response as Response
from veridical.perturb.fills import Fill as Fill
from veridical.perturb.probe import probe as probe
from veridical.perturb.rules import Given as Given
from veridical.perturb.rules import RandomSubsets as RandomSubsets
from veridical.perturb.rules import RankThreshold as RankThreshold
from veridical.perturb.rules import check_steps as check_steps
from veridical.perturb.rules import put_back as put_back
from veridical.perturb.rules import removed_share as removed_share
from veridical.perturb.rules import step_counts as step_counts
from veridical.values.explanation import Explanation as Explanation
from veridical.values.scores import Curve as Curve
from veridical.values.scores import Direction as Direction
from veridical.values.scores import Scores as Scores
from veridical.values.task import Task as Task

__getattr__, __dir__ = lazy_names(__name__, public_names(__name__))
