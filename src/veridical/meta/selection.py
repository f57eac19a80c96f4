"""Choosing by meta-consistency: the metrics of each category, and the settings of one metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from veridical.api import as_metric
from veridical.core.settings import checked
from veridical.errors import InputError
from veridical.meta.evaluate import meta_evaluate
from veridical.meta.result import ENTRIES, MEAN, MetaEvaluation
from veridical.metrics.base import AnyMetric
from veridical.values.task import Task

if TYPE_CHECKING:
    import pandas as pd

MARGIN = 2.0
"""A metric wins its category when it leads the last by so many standard deviations."""


def by_category(result: MetaEvaluation, test: str = MEAN) -> pd.DataFrame:
    """Rank the metrics of each category by their meta-consistency.

    A metric wins its category if it leads the last by at least 2 deviations, the larger of the two metrics'
    own, over iterations: with fewer than two nobody wins. Nor does a metric that does not read the
    explanation.

    Parameters
    ----------
    result
        What `meta_evaluate` gave.
    test
        The test to rank by, or "mean" of IPT and MPT.

    Returns
    -------
    pandas.DataFrame
        One row per metric, best first in its category, with `wins`.
    """
    import pandas as pd

    rows = []
    for category, labels in categories(result).items():
        ranked = sorted(labels, key=lambda label: -_or_last(result.mc(label, test)))
        winner = _winner(result, ranked, test)
        for place, label in enumerate(ranked, 1):
            found, dependence = result[label, test], result.scores[label].dependence
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
    seeing = [label for label in ranked if not result.scores[label].dependence.blind]
    if len(seeing) < 2:
        return None
    best, last = result[seeing[0], test], result[seeing[-1], test]
    lead = best.mc - last.mc
    apart = all(lead >= MARGIN * metric.mc_std for metric in (best, last))  # never where a deviation is NaN
    return seeing[0] if lead > 0 and apart else None


@checked
def search_settings(
    task: Task,
    metric: Any,
    settings: Mapping[str, Sequence[Any]],
    explainers: Sequence[Any] | Mapping[str, Any],
    **options: Any,
) -> tuple[AnyMetric, MetaEvaluation]:
    """Find the settings of a metric with the highest MC: all combinations, under the same perturbations.

    Settings that do not read the explanation cannot win.

    Parameters
    ----------
    task
        The model and the samples.
    metric
        The metric's name or class.
    settings
        The values to try of every setting, as {"runs": [50, 100]}.
    explainers
        As for `meta_evaluate`.
    **options
        Those of `meta_evaluate`.

    Returns
    -------
    tuple of metric and MetaEvaluation
        The best metric, and the whole result, whose labels name the settings.

    Raises
    ------
    InputError
        If nothing is to be tried, or no combination has a meta-consistency.
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
    seeing = [label for label in result.metrics if not result.scores[label].dependence.blind]
    known = [label for label in seeing if result.mc(label) == result.mc(label)]
    if not known:
        raise InputError(f"no setting has a meta-consistency:\n{result!r}")
    return variants[max(known, key=result.mc)], result


def categories(result: MetaEvaluation) -> dict[str, list[str]]:
    """The metrics of each category."""
    found: dict[str, list[str]] = {}
    for label, table in result.scores.items():
        found.setdefault(table.category, []).append(label)
    return found


def _or_last(mc: float) -> float:
    return mc if mc == mc else -1.0


def _short(value: Any) -> str:
    return str(getattr(value, "name", value))
