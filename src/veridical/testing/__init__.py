"""For ours and for your own: the battery of explainers and metrics, and a red team of cheats."""

from veridical.testing.battery import ContractError, check_explainer, check_metric
from veridical.testing.red_team import RedTeamMember, red_team
from veridical.testing.tasks import MODALITIES, tiny_task

__all__ = [
    "MODALITIES",
    "ContractError",
    "RedTeamMember",
    "check_explainer",
    "check_metric",
    "red_team",
    "tiny_task",
]
