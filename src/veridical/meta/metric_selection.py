"""What meta-evaluation is for: choosing metrics and their settings, and how far the choice carries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations, product
from typing import TYPE_CHECKING, Any

import torch

from veridical.api import as_metric
from veridical.errors import InputError
from veridical.functional import spearman
from veridical.meta.evaluate import meta_evaluate
from veridical.meta.result import ENTRIES, MEAN, MetaEvaluation
from veridical.metrics.base import AnyMetric
from veridical.values.task import Task

if TYPE_CHECKING:
    import pandas as pd

MARGIN = 2.0
"""A metric wins its category when it leads the last by so many standard deviations."""


def by_category(result: MetaEvaluation, test: str = MEAN) -> pd.DataFrame:
    """Metrics of each category, best first; `wins` marks a lead over the last of at least 2 deviations.

    The deviation is the larger of the two metrics' own, over iterations: with fewer than two nobody wins. Nor
    does a metric that does not read the explanation.
    """
    import pandas as pd

    rows = []
    for category, labels in _categories(result).items():
        ranked = sorted(labels, key=lambda label: -_or_last(result.mc(label, test)))
        winner = _winner(result, ranked, test)
        for place, label in enumerate(ranked, 1):
            found, dependence = result[label, test], result.books[label].dependence
            rows.append(
                {
                    "category": category,
                    "place": place,
                    "metric": label,
                    "mc": found.mc,
                    "mc_std": found.mc_std,
                    **dict(zip(ENTRIES, found.vector.tolist(), strict=True)),
                    "dependence": dependence.permuted,
                    "wins": label == winner,
                }
            )
    return pd.DataFrame(rows)


def _winner(result: MetaEvaluation, ranked: Sequence[str], test: str) -> str | None:
    seeing = [label for label in ranked if not result.books[label].dependence.blind]
    if len(seeing) < 2:
        return None
    best, last = result[seeing[0], test], result[seeing[-1], test]
    lead = best.mc - last.mc
    apart = all(lead >= MARGIN * metric.mc_std for metric in (best, last))  # never where a deviation is NaN
    return seeing[0] if lead > 0 and apart else None


def search_settings(
    task: Task,
    metric: Any,
    settings: Mapping[str, Sequence[Any]],
    explainers: Sequence[Any] | Mapping[str, Any],
    **options: Any,
) -> tuple[AnyMetric, MetaEvaluation]:
    """Find the settings of a metric with the highest MC: all combinations, judged in the same worlds.

    Gives the best metric and the whole result, whose labels name the settings. Options are those of
    `meta_evaluate`. Settings that do not read the explanation cannot win.
    """
    if not settings or not all(settings.values()):
        raise InputError("give at least one setting with values to try, as {'runs': [50, 100]}")
    if not (isinstance(metric, str) or (isinstance(metric, type) and issubclass(metric, AnyMetric))):
        raise InputError(f"give the metric's name or class, whose settings are open; got {metric!r}")
    variants: dict[str, AnyMetric] = {}
    for values in product(*settings.values()):
        chosen = dict(zip(settings, values, strict=True))
        label = ", ".join(f"{name}={_short(value)}" for name, value in chosen.items())
        variants[label] = as_metric(metric, **chosen)
    result = meta_evaluate(task, variants, explainers, **options)
    seeing = [label for label in result.metrics if not result.books[label].dependence.blind]
    known = [label for label in seeing if result.mc(label) == result.mc(label)]
    if not known:
        raise InputError(f"no setting has a meta-consistency:\n{result!r}")
    return variants[max(known, key=result.mc)], result


def category_convergence(result: MetaEvaluation) -> pd.DataFrame:
    """Do metrics of one category behave alike? Spearman of their vectors, inside and outside the category.

    A vector holds the four consistencies of IPT and of MPT. One row per pair of metrics (figure 10, right).
    """
    import pandas as pd

    if len(result.metrics) < 2:
        raise InputError(f"convergence compares pairs of metrics, this result has {len(result.metrics)}")
    profiles = {
        label: torch.cat([result[label, test].vector for test in result.averaged]) for label in result.metrics
    }
    rows = []
    for a, b in combinations(profiles, 2):
        same = result.books[a].category == result.books[b].category
        rows.append(
            {
                "a": a,
                "b": b,
                "where": "inside" if same else "outside",
                "category": result.books[a].category if same else "",
                "spearman": float(spearman(profiles[a], profiles[b])),
            }
        )
    return pd.DataFrame(rows)


def explainer_dependence(
    result: MetaEvaluation, sets: Sequence[Sequence[str]] | None = None, test: str = MEAN
) -> pd.DataFrame:
    """MC for several sets of explainers, from the scores at hand: no model is asked again (A.5.2).

    All sets of two to L explainers unless some are given. One row per metric and set.
    """
    import pandas as pd

    names = result.explainers
    chosen = sets or [list(some) for size in range(2, len(names) + 1) for some in combinations(names, size)]
    rows = []
    plain = replace(result, resamples=0)  # intervals are not shown, and cost most of the time
    for some in chosen:
        part = plain.with_explainers(some)
        for label in part.metrics:
            rows.append(
                {
                    "metric": label,
                    "explainers": ", ".join(some),
                    "count": len(some),
                    "mc": part.mc(label, test),
                    "mc_std": part[label, test].mc_std,
                    "dependence": part.books[label].dependence.permuted,
                }
            )
    return pd.DataFrame(rows)


def side_by_side(results: Mapping[str, MetaEvaluation], test: str = MEAN) -> pd.DataFrame:
    """The same metrics on several models or data sets, one row per metric and result (figure 8)."""
    import pandas as pd

    frames = []
    for name, result in results.items():
        frame = result.to_frame()
        frames.append(frame[frame["test"] == test].assign(world=name))
    if not frames:
        raise InputError("give at least one result, as {'resnet': result}")
    return pd.concat(frames, ignore_index=True)


def category_averages(results: Mapping[str, MetaEvaluation], test: str = MEAN) -> pd.DataFrame:
    """MC of each category in each result, mean over its metrics (figure 6); `blind` counts those left out.

    A metric that does not read the explanation says nothing about its category. `dependence` is the mean
    share of scores that permuted maps change.
    """
    import pandas as pd

    rows = []
    for name, result in results.items():
        for category, labels in _categories(result).items():
            seeing = [label for label in labels if not result.books[label].dependence.blind]
            values = torch.tensor([result.mc(label, test) for label in seeing], dtype=torch.float64)
            shares = [result.books[label].dependence.permuted for label in seeing]
            rows.append(
                {
                    "category": category,
                    "world": name,
                    "mc": float(values.nanmean()),
                    "dependence": float(torch.tensor(shares, dtype=torch.float64).nanmean()),
                    "metrics": len(seeing),
                    "blind": len(labels) - len(seeing),
                }
            )
    if not rows:
        raise InputError("give at least one result, as {'mnist': result}")
    return pd.DataFrame(rows)


def ranking_consistency(results: Mapping[str, MetaEvaluation], test: str = MEAN) -> pd.DataFrame:
    """How often each metric wins its category over several results, by 2 standard deviations (figure 15)."""
    import pandas as pd

    if not results:
        raise InputError("give at least one result, as {'mnist': result}")
    tables = [by_category(result, test).assign(result=name) for name, result in results.items()]
    table = pd.concat(tables, ignore_index=True)
    table["first"] = table["place"] == 1
    grouped = table.groupby(["category", "metric"], sort=False)
    return grouped.agg(results=("result", "size"), first=("first", "sum"), wins=("wins", "sum")).reset_index()


def _categories(result: MetaEvaluation) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for label, book in result.books.items():
        found.setdefault(book.category, []).append(label)
    return found


def _or_last(mc: float) -> float:
    return mc if mc == mc else -1.0


def _short(value: Any) -> str:
    return str(getattr(value, "name", value))
