"""What an audit found: the verdict, and everything it rests on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from veridical.audit.checks import Checks
from veridical.audit.effort import Effort
from veridical.audit.verdict import Place, Verdict
from veridical.fidelity import RobustnessTable
from veridical.meta import MetaEvaluation
from veridical.model.cost import Cost
from veridical.qge import Standing
from veridical.values.evaluation import Evaluation
from veridical.values.task import Task

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from veridical.surf import Comparison


@dataclass(frozen=True, eq=False, repr=False)
class Audit:
    """The verdict on the explainers of a model; prints it, and writes the whole story with `report`.

    `evaluation` holds all scores and explanations, `reliability` what the metrics are worth here, `checks`
    what was asked of the model alone. `seconds` by stage and `costs` in rows say what it took.
    """

    task: Task
    verdict: Verdict
    checks: Checks
    evaluation: Evaluation
    reliability: MetaEvaluation | None
    effort: Effort
    seed: int
    skipped_explainers: Mapping[str, str]
    skipped_metrics: Mapping[str, str]
    robustness: RobustnessTable | None = None
    standings: Mapping[str, Standing] = field(default_factory=dict)
    concepts: Comparison | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    costs: Mapping[str, Cost] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def best(self) -> str | None:
        """The explainer to use, or None when none is better than the controls."""
        return self.verdict.best

    @property
    def ranking(self) -> tuple[Place, ...]:
        """The explainers, best first, with intervals; controls are in `verdict.controls`."""
        return self.verdict.ranking

    @property
    def sentences(self) -> tuple[str, ...]:
        """The verdict in words."""
        return self.verdict.sentences

    def to_frame(self) -> pd.DataFrame:
        """One row per explainer: weighted score, interval, probability of being best, p-values."""
        return self.verdict.to_frame()

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the ranking with its intervals, controls below."""
        from veridical.audit.plots import plot_ranking

        return plot_ranking(self.verdict, ax)

    def report(self, path: str | Path, format: str = "html") -> Path:
        """Write the report: one self-contained HTML file, or Markdown with `format="md"`."""
        from veridical.report.audit import write_audit

        return write_audit(self, path, format)

    def to_json(self) -> dict[str, Any]:
        """Verdict, checks, metrics and cost as plain data."""
        from dataclasses import asdict

        verdict = self.verdict
        return {
            "task": repr(self.task),
            "effort": asdict(self.effort),
            "seed": self.seed,
            "best": self.best,
            "sentences": list(self.sentences),
            "ranking": [{**asdict(p), "beats": dict(p.beats), "trusted": p.trusted} for p in verdict.places],
            "metrics": [asdict(judge) for judge in verdict.judges],
            "pairs": [asdict(pair) for pair in verdict.pairs],
            "kendall_w": verdict.kendall_w,
            "kendall_p": verdict.kendall_p,
            "friedman_p": verdict.friedman_p,
            "critical_difference": verdict.critical_difference,
            "groups": [list(group) for group in verdict.groups],
            "checks": [asdict(check) for check in self.checks.checks],
            "skipped_explainers": dict(self.skipped_explainers),
            "skipped_metrics": dict(self.skipped_metrics),
            "failures": [
                {"explainer": f.explainer, "metric": f.metric, "message": f.message}
                for f in self.evaluation.failures
            ],
            "concepts": _concepts(self.concepts),
            "seconds": dict(self.seconds),
            "costs": {name: asdict(cost) for name, cost in self.costs.items()},
            "versions": dict(self.versions),
            "notes": list(self.notes),
        }

    def __repr__(self) -> str:
        lines = [f"Audit of {self.task.name} ({len(self.task)} samples, effort {self.effort.name})", ""]
        lines += [f"  {sentence}" for sentence in self.sentences]
        width = max(len(p.explainer) for p in self.verdict.places)
        lines += ["", f"  {'explainer':<{width}}  rivals beaten       best   above controls"]
        for p in self.verdict.places:
            if p.control:
                mark = "control"
            elif p.score != p.score:
                mark = ""
            else:
                mark = "yes" if p.trusted else "no"
            chance = "" if p.control else f"{p.p_best:5.0%}"
            lines.append(
                f"  {p.explainer:<{width}}  {p.score:5.0%} [{p.low:4.0%}, {p.high:4.0%}]  "
                f"{chance:>5}   {mark}"
            )
        if self.evaluation.failures:
            lines += ["", f"  {len(self.evaluation.failures)} cells failed; see .evaluation.failures"]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from veridical.plots import html_summary

        rows = [
            (
                p.explainer,
                f"{p.score:.0%} [{p.low:.0%}, {p.high:.0%}]",
                "" if p.control else f"{p.p_best:.0%}",
                "control" if p.control else "yes" if p.trusted else "no",
            )
            for p in self.verdict.places
        ]
        head = ("explainer", "rivals beaten", "best", "above controls")
        return html_summary(" ".join(self.sentences), head, rows)


def _concepts(found: Comparison | None) -> dict[str, Any] | None:
    """The verdict on concept methods as plain data."""
    from dataclasses import asdict

    if found is None or found.verdict is None:
        return None
    return {
        "best": found.verdict.best,
        "sentences": list(found.verdict.sentences),
        "methods": [{**asdict(place), "trusted": place.trusted} for place in found.verdict.places],
        "refused": dict(found.refused),
    }
