"""The contract battery: what every explainer and metric promises, checked for ours and for a user's own."""

from veridical.testing.battery import ContractError, check_explainer, check_metric
from veridical.testing.tasks import MODALITIES, tiny_task

__all__ = ["MODALITIES", "ContractError", "check_explainer", "check_metric", "tiny_task"]
