"""The table of an evaluation: every explainer under every metric, with its uncertainty and its failures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from veridical.errors import visible
from veridical.values.explanation import Explanation
from veridical.values.scores import Scores
from veridical.values.task import Task

if TYPE_CHECKING:
    import pandas as pd

    from veridical.values.tables import ScoreTable


def _clear(one: Scores, other: Scores) -> int:
    """1 where one is better by more than two standard errors of the differences, -1 where worse, else 0."""
    gap = (one.utility - other.utility).double()
    gap = gap[~gap.isnan()]
    error = float(gap.std() / len(gap) ** 0.5) if len(gap) > 1 else float("inf")
    return int(gap.mean() > 2 * error) - int(gap.mean() < -2 * error) if len(gap) else 0


@dataclass(frozen=True)
class Failure:
    """A cell that raised; `metric` is None when the explanation itself failed."""

    explainer: str
    metric: str | None
    message: str
    traceback: str = field(repr=False)


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """Scores by (explainer, metric), the explanations they score, and what failed."""

    task: Task
    scores: Mapping[tuple[str, str], Scores]
    explanations: Mapping[str, Explanation]
    failures: list[Failure]
    interrupted: bool
    seed: int

    @property
    def explainers(self) -> list[str]:
        """The labels of the explainers, in the order given."""
        return list(dict.fromkeys(who for who, _ in self.scores))

    @property
    def metrics(self) -> list[str]:
        """The labels of the metrics, in the order given."""
        return list(dict.fromkeys(what for _, what in self.scores))

    def __getitem__(self, cell: tuple[str, str]) -> Scores:
        return self.scores[cell]

    def to_frame(self) -> pd.DataFrame:
        """One row per cell: mean with its interval over samples, direction, flags and cost."""
        import pandas as pd

        from veridical.values.tables import summary_row

        rows: list[dict[str, Any]] = [
            {"explainer": who, "metric": what, **summary_row(scores)}
            for (who, what), scores in self.scores.items()
        ]
        rows += [
            {"explainer": one.explainer, "metric": one.metric, "flags": f"failed: {one.message}"}
            for one in self.failures
        ]
        return pd.DataFrame(rows)

    def compare(self, other: Evaluation) -> pd.DataFrame:
        """What another evaluation says of the same explainers: one row per metric, and whether orders agree.

        Of the same samples with another fill, say: `evaluate(task.with_fill("mean"), ...)`. `turned` are
        pairs of explainers whose order differs and is clear in both: the mean difference over samples lies
        more than two standard errors from zero, on the other side.
        """
        import pandas as pd
        from scipy.stats import kendalltau

        rows = []
        for what in (metric for metric in self.metrics if metric in other.metrics):
            both = [t for t in self.explainers if (t, what) in self.scores and (t, what) in other.scores]
            if not both:
                continue
            means = [[float(e[who, what].utility.nanmean()) for who in both] for e in (self, other)]
            pairs = list(combinations(both, 2))
            clear = [[_clear(e[a, what], e[b, what]) for a, b in pairs] for e in (self, other)]
            turned = [pair for pair, a, b in zip(pairs, *clear, strict=True) if a * b < 0]
            best = [both[max(range(len(both)), key=mean.__getitem__)] for mean in means]
            tau = kendalltau(*means).statistic if len(both) > 1 else float("nan")
            turned_as = "; ".join(" and ".join(pair) for pair in turned)
            rows.append(
                {"metric": what, "best": best[0], "best there": best[1], "tau": tau, "turned": turned_as}
            )
        return pd.DataFrame(rows)

    def to_csv(self, path: str | Path) -> Path:
        """Write `to_frame` as a file that spreadsheets open."""
        from veridical.values.tables import write_csv

        return write_csv(self.to_frame(), path)

    def _table(self) -> ScoreTable:
        from veridical.values.tables import score_table

        return score_table(self.scores)

    def to_markdown(self) -> str:
        """Means with their intervals as a Markdown table; arrows show the better way, the best is bold."""
        return self._table().markdown()

    def to_latex(self) -> str:
        """Means with their intervals as a LaTeX table (booktabs), likewise."""
        return self._table().latex()

    def report(self, path: str | Path) -> Path:
        """Write one self-contained HTML page with the table and a gallery."""
        from veridical.report.evaluation import write_evaluation
        from veridical.values.tables import check_page_path

        return write_evaluation(self, check_page_path(path))

    def __repr__(self) -> str:
        return "\n".join([self._table().text(), *self._notes()])

    def _notes(self) -> list[str]:
        notes = [f"{len(self.failures)} cells failed"] if self.failures else []
        own = (
            "" if self.task.train is not None else ", found on these samples, as there are no reference rows"
        )
        found = {what: scores.noise for (_, what), scores in self.scores.items() if scores.noise}
        notes += [f"{visible(what)}: {noise}{own}" for what, noise in found.items()]
        return notes + ["interrupted: not all cells were scored"] * self.interrupted

    def _repr_html_(self) -> str:
        from veridical.plots import html_summary

        head, *rows = self._table().lines()
        return html_summary("; ".join(self._notes()), head, rows)
