"""What the race scored as one table: the scores and maps of all its looks together."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from veridical.auditing.panel import Judges
from veridical.auditing.race import Race, Runner
from veridical.gef.joining import joined_scores
from veridical.models.cost import Cost
from veridical.values.evaluation import Evaluation
from veridical.values.explanation import Explanation
from veridical.values.scores import Scores
from veridical.values.task import Task


def evaluation_of(race: Race, judges: Judges, seed: int) -> Evaluation:
    """Every method and control under every metric; methods that left the race have fewer samples."""
    everyone = (*race.runners.values(), *race.controls.values())
    scores: dict[tuple[str, str], Scores] = {}
    for runner in everyone:
        for label in judges.scoring:
            parts = [done.scores[label] for done in runner.done if label in done.scores]
            if parts and len(parts) == len(runner.done):
                scores[runner.label, label] = joined_scores(parts)
    maps = {r.label: made for r in everyone if (made := _maps(r, race.task)) is not None}
    failures = [failure for r in everyone for failure in r.failures]
    return Evaluation(race.task, scores, maps, failures, False, seed)


def _maps(runner: Runner, task: Task) -> Explanation | None:
    parts = [done.explanation for done in runner.done]
    whole = [part for part in parts if part is not None]
    if not whole or len(whole) < len(parts):
        return None
    return joined_maps(whole, task)


def joined_maps(parts: Sequence[Explanation], task: Task) -> Explanation:
    """The maps of looks that follow each other, from the task's first sample on."""
    if len(parts) == 1:
        return parts[0]
    together = {
        name: torch.cat([getattr(part, name) for part in parts])
        for name in ("values", "targets", "ids", "order", "tied", "draw_ids")
    }
    first = parts[0]
    own = first.space.n_features == task.space.n_features  # else features of the method's own, such as codes
    return Explanation(
        together["values"],
        task.space.take(slice(0, len(together["ids"]))) if own else first.space,
        together["targets"],
        together["ids"],
        first.explainer,
        together["order"],
        sum((part.cost for part in parts), Cost()),
        first.provenance,
        tied=together["tied"],
        draw_ids=together["draw_ids"],
    )
