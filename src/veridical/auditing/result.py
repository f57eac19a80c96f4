"""The result of an audit: verdict, checks, scores, costs; as table, JSON, picture and page."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from veridical.auditing.check import Checks
from veridical.auditing.effort import Effort
from veridical.auditing.evidence import Test
from veridical.auditing.sentences import reason_of
from veridical.auditing.verdict import HEAD, Ranking, Verdict
from veridical.errors import InputError
from veridical.fidelity import RobustnessTable
from veridical.meta import MetaEvaluation
from veridical.meta.admissible import PlantedDamage
from veridical.models.cost import Cost
from veridical.plots import COLOURS, axes
from veridical.qge import Standing
from veridical.values.evaluation import Evaluation
from veridical.values.task import Task

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from veridical.concepts import Comparison
    from veridical.data.prompt_checks import PromptChecks


@dataclass(frozen=True, eq=False, repr=False)
class Audit:
    """The verdict on the explainers of a model; prints it, and writes the whole story with `report`.

    Attributes
    ----------
    task : Task
        The model, and the samples that were explained.
    verdict : Verdict
        Who is trusted, in which group, by which tests; controls stand in `verdict.controls`.
    checks : Checks
        Checks of the model alone.
    evaluation : Evaluation
        All scores and explanations.
    reliability : MetaEvaluation or None
        The meta-consistency of the metrics here, a second opinion.
    effort, seed : Effort, int
        How much was done, and the seed of all draws.
    skipped_explainers, skipped_metrics : mapping
        Why others did not take part.
    seconds, costs : mapping
        What each stage took: time, and rows of the model.
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
    beside: tuple[Test, ...] = ()
    """How the chosen method does against maps that metrics could mistake for good ones."""
    damage: PlantedDamage | None = None
    """What planted damage showed of the metrics."""
    kept: int = 0
    """Jobs that an earlier, ended run had done already."""
    call: str = ""
    """The call that repeats this audit."""
    prompts: PromptChecks | None = None
    """Beside the scores of prompts: remembered answers, redundant units, what another "off" would give."""

    @property
    def best(self) -> str | None:
        """The explainer to use, or None when none is better than the controls."""
        return self.verdict.best

    @property
    def ranking(self) -> Ranking:
        """The explainers, best first, with intervals; prints as a table. Controls: `verdict.controls`."""
        return self.verdict.ranking

    @property
    def sentences(self) -> tuple[str, ...]:
        """The verdict in words."""
        return self.verdict.sentences

    def to_frame(self) -> pd.DataFrame:
        """Put the verdict in a table.

        Returns
        -------
        pandas.DataFrame
            One row per explainer: its word (`status`) and reason, grade, questions, tests, win rate against
            the controls with its interval, and group.
        """
        return self.verdict.to_frame()

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the ranking with its intervals.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Where to draw; a new figure by default.

        Returns
        -------
        matplotlib.axes.Axes
            What was drawn on.

        Raises
        ------
        InputError
            Where no method has a score.
        """
        return plot_ranking(self.verdict, ax)

    def report(self, path: str | Path, format: str = "html") -> Path:
        """Write the report: one self-contained HTML file, or Markdown.

        Parameters
        ----------
        path : path
            The file to write.
        format : str
            "html" or "md".

        Returns
        -------
        Path
            The file that was written.
        """
        from veridical.report.audit import write_audit

        return write_audit(self, path, format)

    def to_json(self) -> dict[str, Any]:
        """Give verdict, checks, metrics and cost as plain data.

        Returns
        -------
        dict
            Strict JSON: what has no value is None.
        """
        verdict = self.verdict
        return without_nan(
            {
                "task": repr(self.task),
                "effort": asdict(self.effort),
                "seed": self.seed,
                "best": self.best,
                "sentences": list(self.sentences),
                "why_no_verdict": verdict.why_none,
                "criteria": list(verdict.criteria),
                "not_asked": dict(verdict.absent),
                "ranking": [
                    {
                        **asdict(place),
                        "grade": None if place.grade is None else place.grade._asdict(),
                        "status": place.status,
                        "trusted": place.trusted,
                        "reason": "" if place.control else reason_of(place, self.task.head, verdict),
                    }
                    for place in verdict.places
                ],
                "groups": [list(group) for group in verdict.groups],
                "pairs": [asdict(pair) for pair in verdict.pairs],
                "beside": [asdict(test) for test in self.beside],
                "metrics": [{**asdict(role), "admissible": role.admissible} for role in verdict.metrics],
                "checks": [asdict(check) for check in self.checks.checks],
                "skipped_explainers": dict(self.skipped_explainers),
                "skipped_metrics": dict(self.skipped_metrics),
                "failures": [
                    {"explainer": f.explainer, "metric": f.metric, "message": f.message}
                    for f in self.evaluation.failures
                ],
                "concepts": _concepts(self.concepts),
                "prompts": None if self.prompts is None else self.prompts.to_json(),
                "seconds": dict(self.seconds),
                "costs": {name: asdict(cost) for name, cost in self.costs.items()},
                "versions": dict(self.versions),
                "call": self.call,
                "notes": list(self.notes),
            }
        )

    def __repr__(self) -> str:
        lines = [f"Audit of {self.task.name} ({self.verdict.samples} samples, effort {self.effort.name})", ""]
        lines += [f"  {sentence}" for sentence in self.sentences]
        lines += ["", *(f"  {line}" for line in repr(self.ranking).splitlines())]
        if self.evaluation.failures:
            lines += ["", f"  {len(self.evaluation.failures)} cells failed; see .evaluation.failures"]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from veridical.plots import html_summary

        return html_summary(" ".join(self.sentences), HEAD, self.ranking.rows())


def without_nan(value: Any) -> Any:
    """The same plain data with None where a number is NaN or infinite: neither is JSON."""
    if isinstance(value, Mapping):
        return {name: without_nan(held) for name, held in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(held) for held in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _concepts(found: Comparison | None) -> dict[str, Any] | None:
    """The verdict on concept methods as plain data."""
    if found is None or found.verdict is None:
        return None
    return {
        "best": found.verdict.best,
        "sentences": list(found.verdict.sentences),
        "methods": [{**asdict(place), "trusted": place.trusted} for place in found.verdict.places],
        "refused": dict(found.refused),
    }


BEST, UNTRUSTED, CONTROL = COLOURS[0], COLOURS[1], "0.55"


def plot_ranking(verdict: Verdict, ax: Axes | None = None) -> Axes:
    """Scores with their intervals, best on top; orange is not trusted."""
    places = [place for place in verdict.ranking if place.score == place.score]
    if not places:
        raise InputError("there is no ranking to draw: no metric was admissible for this verdict")
    ax = axes(ax, height=1.0 + 0.32 * len(places))
    for row, place in enumerate(reversed(places)):
        colour = BEST if place.trusted else UNTRUSTED
        ax.plot([place.low, place.high], [row, row], color=colour, linewidth=2.5, alpha=0.5)
        ax.plot(place.score, row, "o", color=colour, markersize=6)
    ax.axvline(0.5, color=CONTROL, linewidth=1, linestyle="--")
    ax.set_yticks(range(len(places)), [place.explainer for place in reversed(places)])
    ax.set_xlim(-0.02, 1.02)
    ax.set_xlabel(f"samples in which it beats the controls, {verdict.level:.0%} interval (dashed: half)")
    return ax
