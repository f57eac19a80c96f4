"""F-Fidelity: removal tests that stay within what the judging model has learnt to miss."""

from veridical.fidelity.artefact import Finetuned
from veridical.fidelity.case import CaseStudy, case_study
from veridical.fidelity.comparing import ExplainerTable, compare_explainers
from veridical.fidelity.costs import CostComparison
from veridical.fidelity.degradation import degraded
from veridical.fidelity.finetuning import finetune
from veridical.fidelity.masked_pass import measure
from veridical.fidelity.metrics import FFid, Fid, RFid
from veridical.fidelity.preservation import (
    BoundaryStudy,
    MapPair,
    boundary_study,
    map_agreement,
    maps_side_by_side,
)
from veridical.fidelity.ranking import RankingStudy, ranking_study
from veridical.fidelity.roar import ROAR
from veridical.fidelity.robustness import RobustnessTable, robustness_table
from veridical.fidelity.sensitivity import Sensitivity, sensitivity
from veridical.fidelity.size import ExplanationSize, explanation_size

__all__ = [
    "ROAR",
    "BoundaryStudy",
    "CaseStudy",
    "CostComparison",
    "ExplainerTable",
    "ExplanationSize",
    "FFid",
    "Fid",
    "Finetuned",
    "MapPair",
    "RFid",
    "RankingStudy",
    "RobustnessTable",
    "Sensitivity",
    "boundary_study",
    "case_study",
    "compare_explainers",
    "degraded",
    "explanation_size",
    "finetune",
    "map_agreement",
    "maps_side_by_side",
    "measure",
    "ranking_study",
    "robustness_table",
    "sensitivity",
]
