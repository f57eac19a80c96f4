"""F-Fidelity: removal tests that stay within what the judging model has learnt to miss."""

from veridical.fidelity.artefact import Finetuned
from veridical.fidelity.finetuning import finetune
from veridical.fidelity.metrics import FFid, Fid, RFid
from veridical.fidelity.robustness import RobustnessTable, robustness_table

__all__ = ["FFid", "Fid", "Finetuned", "RFid", "RobustnessTable", "finetune", "robustness_table"]
