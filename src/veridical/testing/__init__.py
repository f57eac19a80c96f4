"""For ours and for your own: the contract battery of explainers and metrics, and the red team of cheats."""

from veridical.testing.battery import ContractError, check_explainer, check_metric
from veridical.testing.red_team import PartialLie, RedTeamMember, partial_lies, red_team
from veridical.testing.tasks import MODALITIES, tiny_task

__all__ = [
    "MODALITIES",
    "ContractError",
    "PartialLie",
    "RedTeamMember",
    "check_explainer",
    "check_metric",
    "partial_lies",
    "red_team",
    "tiny_task",
]
