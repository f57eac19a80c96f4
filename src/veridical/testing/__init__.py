"""For ours and for your own: the battery of explainers and metrics, and red teams of cheats and of models."""

from veridical.testing.battery import ContractError, check_explainer, check_metric
from veridical.testing.red_team import PartialLie, RedTeamMember, partial_lies, red_team
from veridical.testing.scaffolds import Scaffold
from veridical.testing.tasks import MODALITIES, tiny_task

__all__ = [
    "MODALITIES",
    "ContractError",
    "PartialLie",
    "RedTeamMember",
    "Scaffold",
    "check_explainer",
    "check_metric",
    "partial_lies",
    "red_team",
    "tiny_task",
]
