"""F-Fidelity: removal tests that stay within what the fine-tuned model has learnt to miss."""

from veridical.fidelity.artefact import Finetuned
from veridical.fidelity.falls import measure
from veridical.fidelity.finetuning import finetune
from veridical.fidelity.metrics import FFid, Fid, RFid
from veridical.fidelity.ranking import RankingStudy, ranking_study
from veridical.fidelity.robustness import RobustnessTable, robustness_table
from veridical.fidelity.size import ExplanationSize, explanation_size

__all__ = [
    "ExplanationSize",
    "FFid",
    "Fid",
    "Finetuned",
    "RFid",
    "RankingStudy",
    "RobustnessTable",
    "explanation_size",
    "finetune",
    "measure",
    "ranking_study",
    "robustness_table",
]
