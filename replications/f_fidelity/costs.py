"""What ROAR and F-Fidelity cost for many explainers, under both accountings, and where they break even."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class CostComparison:
    """Costs in any one unit (seconds, rows): what is paid once and what is paid for each explainer.

    ROAR pays for each explainer the explanations of the training set, its retrainings, and an evaluation;
    F-Fidelity pays one fine-tuning, and an evaluation for each explainer. Done in full ROAR retrains for each
    size and sign; the published table counts one retraining per explainer (Table 13).
    """

    explain_training: float
    retraining: float
    roar_evaluation: float
    finetuning: float
    ffid_evaluation: float
    sizes: int
    signs: int = 2

    def retrainings(self, explainers: int, published: bool = False) -> int:
        """How many models ROAR trains."""
        return explainers * (1 if published else self.sizes * self.signs)

    def roar(self, explainers: int, published: bool = False) -> float:
        """ROAR's cost for a number of explainers."""
        once = self.explain_training + self.roar_evaluation
        return explainers * once + self.retrainings(explainers, published) * self.retraining

    def ffid(self, explainers: int) -> float:
        """F-Fidelity's cost for a number of explainers."""
        return self.finetuning + explainers * self.ffid_evaluation

    def break_even(self, published: bool = False) -> float:
        """Explainers from which F-Fidelity is cheaper: finetuning / (ROAR's cost each - FFid's cost each).

        Infinite where an evaluation by FFid alone costs more than all ROAR does for an explainer.
        """
        saved = self.roar(1, published) - self.ffid_evaluation
        return self.finetuning / saved if saved > 0 else math.inf

    def __repr__(self) -> str:
        lines = ["explainers  ROAR (all sizes and signs)  ROAR (one retraining each)  F-Fidelity"]
        for count in (1, 2, 5, 10):
            lines.append(
                f"{count:>10}  {self.roar(count):>26.4g}  {self.roar(count, True):>26.4g}  "
                f"{self.ffid(count):>10.4g}"
            )
        ends = [f"{self.break_even(published):.3g}" for published in (False, True)]
        lines.append(
            f"break even at {ends[0]} explainers (all sizes and signs), {ends[1]} (one retraining each)"
        )
        return "\n".join(lines)
