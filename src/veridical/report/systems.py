"""What the systems found, as plain data: GEF's paths, F-Fidelity's robustness, QGE's standings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from veridical.fidelity import RobustnessTable
from veridical.qge import Standing
from veridical.report.cells import PLAIN
from veridical.values.evaluation import Evaluation
from veridical.values.scores import Scores

BINS = 30


def is_path(evaluation: Evaluation, metric: str) -> bool:
    """Whether a metric follows model and explanation along a path of noise, as GEF does."""
    return any(
        what == metric and "model_distortion" in s.details for (_, what), s in evaluation.scores.items()
    )


def paths(evaluation: Evaluation, statuses: Mapping[str, str]) -> list[dict[str, Any]]:
    """For each metric of GEF: its path, and how far model and explanations moved along it."""
    out = []
    for what in evaluation.metrics:
        if not is_path(evaluation, what):
            continue
        held = {who: evaluation.scores[who, what] for who in statuses if (who, what) in evaluation.scores}
        path = next(iter(held.values())).provenance.get("path")
        lines = [{"label": who, "status": statuses.get(who, PLAIN), **_moved(s)} for who, s in held.items()]
        out.append({"metric": what, "path": path, "lines": lines, "search": _search(path)})
    return out


def _moved(scores: Scores) -> dict[str, Any]:
    def mean(name: str) -> Tensor:
        return scores.details[name].double().nanmean(1).nanmean(0)

    return {
        "x": mean("model_distortion"),
        "y": mean("explanation_distortion"),
        "score": float(scores.details.get("q", scores.values).double().nanmean()),
        "iso": scores.provenance.get("iso_sigma"),
        **{name: float(scores.details[name].double().nanmean()) for name in ("ceiling", "partial")},
    }


def _search(path: Any) -> list[dict[str, Any]]:
    """How many predictions stayed at each noise that was tried, as found and as fitted."""
    if not isinstance(path, Mapping) or not path.get("searched"):
        return []
    chance = [path.get("chance")] * len(path["searched"])
    lines = (
        ("fitted", "best", path["fitted"]),
        ("found", "trusted", path["agreement"]),
        ("chance", "control", chance),
    )
    return [{"label": name, "status": colour, "x": path["searched"], "y": y} for name, colour, y in lines]


def robustness(found: RobustnessTable | None) -> dict[str, Any] | None:
    """Right and unchanged answers of each model by masked share, and what follows from them."""
    if found is None:
        return None
    return {
        "shares": list(found.shares),
        "rows": found.rows,
        "models": [
            {"model": name, "accuracy": list(found.accuracy[name]), "agreement": list(found.agreement[name])}
            for name in found.accuracy
        ],
        "advice": found.advice,
    }


def standing(found: Standing) -> dict[str, Any]:
    """For each sample: the histogram of random rankings, and the place of the explanation among them."""
    return {
        "explainer": found.explainer,
        "metric": found.metric,
        "said": repr(found),
        "samples": [_place(found, at, identity) for at, identity in enumerate(found.ids.tolist())],
    }


def _place(found: Standing, at: int, identity: int) -> dict[str, Any]:
    drawn = found.sample[at].double().cpu()
    drawn = drawn[drawn.isfinite()]
    counts, edges = torch.zeros(1), torch.tensor([0.0, 1.0])
    if len(drawn):
        counts, edges = torch.histogram(drawn, BINS)
    own = float(found.quality[at])
    return {
        "id": identity,
        "edges": edges,
        "counts": [int(count) for count in counts.tolist()],
        "own": own,
        "inverse": own - float(found.gap[at]),
        "percentile": float(found.percentile[at]),
        "low": float(found.low[at]),
        "high": float(found.high[at]),
        "method": found.method[at],
    }
