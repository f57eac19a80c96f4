"""The page of an evaluation (table, curves, gallery, settings), and the page and JSON of one explanation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from veridical.explainers import registry as explainer_registry
from veridical.gef.perturbation_log import incomplete
from veridical.metrics import registry as metric_registry
from veridical.report.citations import bibtex
from veridical.report.gallery import gallery
from veridical.report.rendering import opening, plain, save, write
from veridical.values.evaluation import Evaluation, Failure
from veridical.values.explanation import Explanation
from veridical.values.scores import Scores
from veridical.values.task import Task

GALLERY_SAMPLES = 6


def write_evaluation(evaluation: Evaluation, path: str | Path, format: str = "html") -> Path:
    """Write the page; it loads nothing from anywhere."""
    return write(contents(evaluation), path, format)


def contents(evaluation: Evaluation) -> dict[str, Any]:
    """Everything the page shows, as plain data."""
    made = {
        **opening("evaluation", evaluation.task.name),
        "task": repr(evaluation.task),
        "seed": evaluation.seed,
        "metrics": metric_facts(evaluation),
        "table": table(evaluation),
        "curves": curves(evaluation),
        "gallery": gallery(evaluation.task, evaluation.explanations, {}, samples=GALLERY_SAMPLES),
        "flags": flagged(evaluation),
        "incomplete": incomplete(evaluation.scores.values()),
        "failures": failed(evaluation.failures),
        "interrupted": evaluation.interrupted,
        "settings": settings(evaluation),
        "bibtex": bibtex(papers(evaluation)),
    }
    return plain(made)


PLAIN = "plain"
"""The status of a method where nothing is known of its trustworthiness."""
FACTS = ("summary", "misleads", "paper")


class Scored(Protocol):
    """Anything that holds scores by (explainer, metric): an evaluation, or one task of a study."""

    @property
    def scores(self) -> Mapping[tuple[str, str], Scores]: ...

    @property
    def explainers(self) -> list[str]: ...

    @property
    def metrics(self) -> list[str]: ...


def table(evaluation: Scored, order: list[str] | None = None) -> list[dict[str, Any]]:
    """One row per explainer with a cell per metric; a cell that was not scored is None."""
    best = {}
    for what in evaluation.metrics:
        means = [float(scores.utility.nanmean()) for scores in _scores_of(evaluation, what)]
        best[what] = max((mean for mean in means if mean == mean), default=float("nan"))
    rows = []
    for who in order or evaluation.explainers:
        cells = [(evaluation.scores.get((who, what)), best[what]) for what in evaluation.metrics]
        rows.append(
            {"explainer": who, "cells": [None if s is None else _cell(s, largest) for s, largest in cells]}
        )
    return rows


def _cell(scores: Scores, best: float) -> dict[str, Any]:
    low, high = scores.ci()
    return plain(
        {
            "mean": scores.mean(skip_nan=True),
            "low": low,
            "high": high,
            "best": float(scores.utility.nanmean()) >= best,
            "flags": dict(scores.flagged),
            "forward": scores.cost.forward,
            "backward": scores.cost.backward,
        }
    )


def metric_facts(evaluation: Scored) -> list[dict[str, Any]]:
    """Each metric's direction and the facts on its card."""
    firsts = {what: _scores_of(evaluation, what)[0] for what in evaluation.metrics}
    return [
        {"metric": what, "direction": scores.direction.value, **_card(scores)}
        for what, scores in firsts.items()
    ]


def _scores_of(evaluation: Scored, what: str) -> list[Scores]:
    return [scores for (_, metric), scores in evaluation.scores.items() if metric == what]


def _card(scores: Scores) -> dict[str, str]:
    """The card of the metric that gave these scores; empty for a metric that has no name in the registry."""
    settings = scores.provenance.get("metric", {})
    name = str(settings.get("name", scores.metric)) if isinstance(settings, Mapping) else scores.metric
    prefix, colon, rest = name.partition(":")
    known = rest if colon else name
    if known not in metric_registry:
        return dict.fromkeys(FACTS, "")
    maker: Any = metric_registry.maker(known)
    facts = {fact: str(getattr(maker, fact, "")) for fact in FACTS}
    if colon:
        against = {"qge": "its own inverse", "qrand": "random rankings"}.get(prefix, prefix)
        facts["summary"] = f"{facts['summary']} Against {against}."
    return facts


def curves(
    evaluation: Scored, statuses: Mapping[str, str] | None = None, order: list[str] | None = None
) -> list[dict[str, Any]]:
    """The mean curve of every explainer under each metric that draws one."""
    out = []
    for what in evaluation.metrics:
        cells = [(who, evaluation.scores.get((who, what))) for who in order or evaluation.explainers]
        drawn = [(who, s.curve, s.direction) for who, s in cells if s is not None and s.curve is not None]
        if not drawn:
            continue
        _, first, direction = drawn[0]
        out.append(
            {
                "metric": what,
                "direction": direction.value,
                "x_label": first.x_label,
                "y_label": first.y_label,
                "lines": [
                    {
                        "label": who,
                        "status": (statuses or {}).get(who, PLAIN),
                        "x": plain(curve.x.double()),
                        "y": plain(curve.y.double().nanmean(0)),
                    }
                    for who, curve, _ in drawn
                ],
            }
        )
    return out


def flagged(evaluation: Scored) -> list[dict[str, Any]]:
    """Every flag that was raised: where, why, in how many samples, and which."""
    return [
        {
            "explainer": who,
            "metric": what,
            "reason": reason,
            "count": int(mask.sum()),
            "samples": len(scores),
            "ids": scores.ids[mask.to(scores.ids.device)].cpu().tolist()[:12],
        }
        for (who, what), scores in evaluation.scores.items()
        for reason, mask in scores.flags.items()
    ]


def failed(failures: list[Failure]) -> list[dict[str, Any]]:
    """Cells that raised."""
    return [
        {"explainer": f.explainer, "metric": f.metric, "message": f.message, "traceback": f.traceback}
        for f in failures
    ]


def settings(evaluation: Scored) -> dict[str, Any]:
    """Exact settings: those that all cells share, those of each metric, those of each explainer."""
    metrics: dict[str, Any] = {}
    explainers: dict[str, Any] = {}
    shared: dict[str, Any] = {}
    for (who, what), scores in evaluation.scores.items():
        held = dict(scores.provenance)
        found = {"path found": held["path"]} if "path" in held else {}
        metrics.setdefault(what, {**held.pop("metric", {}), **found})
        explainers.setdefault(who, held.pop("explainer", {}))
        for name in ("seed", "plan", "device", "fill", "torch"):
            if name in held:
                shared.setdefault(name, held[name])
    return plain({"shared": shared, "metrics": metrics, "explainers": explainers})


def papers(evaluation: Scored) -> list[str]:
    """What the cards of the metrics and explainers name as their papers."""
    named = [one["paper"] for one in metric_facts(evaluation)]
    for scores in evaluation.scores.values():
        made = scores.provenance.get("explainer") or {}
        name = made.get("name") if isinstance(made, Mapping) else None
        if name in explainer_registry:
            named.append(str(getattr(explainer_registry.maker(str(name)), "paper", "")))
    return list(dict.fromkeys(named))


# --- one explanation ---------------------------------------------------------------------------------------

MOST = 64
"""Samples on a page."""


def shown_samples(task: Task, explanation: Explanation, samples: int = MOST) -> dict[str, Any]:
    """The first samples in their order, as pages show them."""
    few = slice(0, min(samples, len(task)))
    return gallery(task[few], {explanation.explainer: explanation.take(few)}, {}, samples=samples)


def strongest(explanation: Explanation, sample: int, count: int = 5) -> list[tuple[str, float]]:
    """The features that speak most for or against, by name."""
    everything = explanation.top(sample, explanation.space.n_features)
    return sorted(everything, key=lambda feature: -abs(feature[1]))[:count]


def write_explanation(explanation: Explanation, task: Task, path: str | Path) -> Path:
    """Write one offline page."""
    about = {"task": repr(task), "explainer": explanation.explainer}
    page = {**opening("explanation", task.name), **about, "gallery": shown_samples(task, explanation)}
    return write(page, path)


def save_explanation(explanation: Explanation, task: Task, path: str | Path) -> Path:
    """Write all samples as JSON: what the model says, and every feature with its relevance."""
    items = shown_samples(task, explanation, len(task))["items"]
    about = ("id", "target", "predicted", "label", "output", "response", "says")
    rows = [
        {
            **{name: item[name] for name in about},
            "features": [list(pair) for pair in explanation.top(sample, explanation.space.n_features)],
        }
        for sample, item in enumerate(items)
    ]
    made = {**opening("explanation", task.name), "task": repr(task), "provenance": explanation.provenance}
    return save(plain({**made, "cost": repr(explanation.cost), "samples": rows}), path)
