"""The page of a study: each task's table over seeds, what failed, and how far it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from veridical.gef.iso_gef import joined_provenance
from veridical.gef.perturbation_log import incomplete
from veridical.models.cost import Cost
from veridical.report.citations import bibtex
from veridical.report.evaluation import curves, flagged, metric_facts, papers, settings, table
from veridical.report.rendering import opening, plain
from veridical.study.result import Study
from veridical.values.scores import Scores


@dataclass(frozen=True)
class TaskCells:
    """The scores of one task by (explainer, metric), averaged over seeds."""

    scores: Mapping[tuple[str, str], Scores]

    @property
    def explainers(self) -> list[str]:
        return list(dict.fromkeys(who for who, _ in self.scores))

    @property
    def metrics(self) -> list[str]:
        return list(dict.fromkeys(what for _, what in self.scores))


def contents(study: Study) -> dict[str, Any]:
    """Everything the page shows, as plain data."""
    progress = study.status()
    held = {task.label: _task(study, task.label) for task in study.plan.tasks}
    cited = [paper for found in held.values() for paper in papers(found)]
    return plain(
        {
            **opening("study", study.name),
            "progress": str(progress),
            "complete": progress.complete,
            "seeds": list(study.plan.seeds),
            "tasks": [
                {
                    "name": label,
                    "metrics": metric_facts(found),
                    "table": table(found),
                    "curves": curves(found),
                    "flags": flagged(found),
                    "incomplete": incomplete(found.scores.values()),
                    "settings": settings(found),
                }
                for label, found in held.items()
            ],
            "across": _across(study) if len(held) > 1 else {},
            "failures": [
                {
                    "explainer": f"{failed.name.explainer} on {failed.name.task}, seed {failed.name.seed}",
                    "metric": failed.name.metric,
                    "message": failed.error,
                    "traceback": failed.traceback,
                }
                for failed in study.failures
            ],
            "skipped": [dict(one) for one in study.plan.skipped],
            "bibtex": bibtex(dict.fromkeys(cited)),
        }
    )


def _across(study: Study) -> dict[str, Any]:
    """Mean ranks over tasks by metric, best first, of explainers that have a score on all that any has."""
    found, out = study.across(), {}
    for metric, rows in found.groupby("metric", sort=False) if len(found) else ():
        rows = rows[rows["tasks"] == rows["tasks"].max()].sort_values("mean_rank", kind="stable")
        columns = ("explainer", "mean_rank", "best_in", "tasks")
        out[str(metric)] = [
            dict(zip(columns, row, strict=True)) for row in rows[list(columns)].values.tolist()
        ]
    return out


def _task(study: Study, task: str) -> TaskCells:
    """The cells of a task that are finished."""
    by_cell: dict[tuple[str, str], list[Scores]] = {}
    for name in study:
        if name.task == task:
            by_cell.setdefault((name.explainer, name.metric), []).append(study[name])
    return TaskCells({cell: over_seeds(found) for cell, found in by_cell.items()})


def over_seeds(found: Sequence[Scores]) -> Scores:
    """The mean of every sample over seeds; a flag counts where any seed raised it, and costs add up."""
    first = found[0]
    if len(found) == 1:
        return first
    reasons = dict.fromkeys(reason for scores in found for reason in scores.flags)
    none = torch.zeros(len(first), dtype=torch.bool)
    flags = {
        reason: torch.stack([s.flags.get(reason, none).cpu() for s in found]).any(0) for reason in reasons
    }
    curve = first.curve
    if curve is not None:
        curve = replace(curve, y=_mean([s.curve.y for s in found if s.curve is not None]))
    return replace(
        first,
        values=_mean([s.values for s in found]),
        flags=flags,
        curve=curve,
        details={},
        cost=sum((s.cost for s in found), Cost()),
        provenance=joined_provenance(found, {}),
    )


def _mean(parts: Sequence[Tensor]) -> Tensor:
    return torch.stack([part.double().cpu() for part in parts]).nanmean(0)
