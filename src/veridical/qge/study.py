"""Ranking studies: how well QGE and QRAND keep the order of a quality, over all or many rankings."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, fields
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Self

import torch
from torch import Tensor

from veridical.api import as_explanation, as_metric
from veridical.core.allowed import MANY, Count, Within
from veridical.core.key import Key
from veridical.core.progress import track
from veridical.core.settings import checked
from veridical.errors import InputError
from veridical.metrics.base import Metric
from veridical.models.cost import Cost
from veridical.perturb.shared_work import sharing
from veridical.qge.agreement import STRATA, KeptOrder, above_random, histogram
from veridical.qge.gap import paired
from veridical.qge.kept_features import KeptFeatures
from veridical.qge.paths import path_of, scores_along
from veridical.qge.rankings import random_orders, reversed_orders
from veridical.qge.subsets import LARGEST_ENUMERATION, RankingScores, all_rankings, rounded, subset_responses
from veridical.values.explanation import Explanation
from veridical.values.scores import Direction
from veridical.values.task import Task

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_AGREEMENT = ("tau", "rho", "stratum_tau", "spread")
_HISTOGRAMS = ("quality_histogram", "gap_histogram")


@dataclass(frozen=True, eq=False, repr=False)
class RankingStudy:
    """Agreement of a quality q with QGE and QRAND_K over many rankings of each input.

    `tau` and `rho` (inputs, 1 + K) hold QGE first, then QRAND_1..K; `stratum_tau` (inputs, strata, 1 + K) the
    same among the rankings of each stratum of q; histograms are (edges, density), one row per input.
    """

    metric: str
    ids: Tensor
    rankings: int
    exhaustive: bool
    tau: Tensor
    rho: Tensor
    stratum_tau: Tensor
    spread: Tensor
    quality_histogram: tuple[Tensor, Tensor]
    gap_histogram: tuple[Tensor, Tensor]
    cost: Cost

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def transforms(self) -> list[str]:
        """Names of the columns of `tau` and `rho`."""
        return ["QGE", *(f"QRAND_{k}" for k in range(1, self.tau.shape[1]))]

    @property
    def gain_tau(self) -> Tensor:
        """tau(q, QGE) - tau(q, QRAND_1) of each input: the tables' delta tau."""
        return self.tau[:, 0] - self.tau[:, 1]

    @property
    def gain_rho(self) -> Tensor:
        """rho(q, QGE) - rho(q, QRAND_1) of each input: the tables' delta rho."""
        return self.rho[:, 0] - self.rho[:, 1]

    def to_frame(self) -> pd.DataFrame:
        """One row an (input, transform)."""
        import pandas as pd

        rows = [
            {
                "id": int(self.ids[i]),
                "metric": self.metric,
                "transform": name,
                "tau": float(self.tau[i, t]),
                "rho": float(self.rho[i, t]),
                "spread": float(self.spread[i]),
                "rankings": self.rankings,
            }
            for i in range(len(self))
            for t, name in enumerate(self.transforms)
        ]
        return pd.DataFrame(rows)

    def strata_frame(self) -> pd.DataFrame:
        """One row an (input, stratum, transform)."""
        import pandas as pd

        rows = [
            {
                "id": int(self.ids[i]),
                "stratum": low,
                "transform": name,
                "tau": float(self.stratum_tau[i, s, t]),
            }
            for i in range(len(self))
            for s, low in enumerate(STRATA)
            for t, name in enumerate(self.transforms)
        ]
        return pd.DataFrame(rows)

    def to_json(self) -> dict[str, Any]:
        """The study as plain data: its pictures can be drawn later, and elsewhere."""
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        tensors = {name: value.tolist() for name, value in plain.items() if isinstance(value, Tensor)}
        histograms = {name: [part.tolist() for part in plain[name]] for name in _HISTOGRAMS}
        return {**plain, **tensors, **histograms, "cost": [self.cost.forward, self.cost.backward]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The study that `to_json` described."""
        numbers = {n: torch.tensor(data[n], dtype=torch.float64) for n in _AGREEMENT}
        histograms = {
            n: tuple(torch.tensor(part, dtype=torch.float64) for part in data[n]) for n in _HISTOGRAMS
        }
        return cls(
            **{**data, **numbers, **histograms, "ids": torch.tensor(data["ids"]), "cost": Cost(*data["cost"])}
        )

    def plot(self, ax: Axes | None = None, rho: bool = False, stratum: int | None = None) -> Axes:
        """Draw tau (or rho) over K beside that of QGE: figure 2 (5), or 3 among a stratum of quality."""
        from veridical.qge.plots import plot_agreement

        return plot_agreement(self, ax, rho, stratum)

    def plot_strata(self, ax: Axes | None = None, draws: int = 1) -> Axes:
        """Draw tau over the strata of quality: figure 3 at a glance."""
        from veridical.qge.plots import plot_strata

        return plot_strata(self, ax, draws)

    def plot_distribution(self, ax: Axes | None = None, of: str = "gap") -> Axes:
        """Draw the distributions of the gap or the quality over all rankings: figures 4 and 6."""
        from veridical.qge.plots import plot_distribution

        return plot_distribution(self, ax, of)

    def __repr__(self) -> str:
        tau, gain = self.tau[:, 0], self.gain_tau
        what = "all" if self.exhaustive else "sampled"
        return (
            f"Ranking study of {self.metric}: {len(self)} inputs x {self.rankings:,} {what} rankings; "
            f"tau(q, QGE) {_spread(tau)}, gain over QRAND_1 {_spread(gain)}, cost {self.cost}"
        )


def _spread(values: Tensor) -> str:
    return f"{float(values.mean()):.3f} +- {float(values.std(correction=0)):.3f}"


@checked
def exhaustive_study(
    task: Task,
    metric: Any = None,
    *,
    draws: Count = 10,
    seed: int = 0,
    progress: bool | None = None,
) -> RankingStudy:
    """Judge QGE and QRAND_1..draws on all D! rankings of each input, from 2^D - 1 evaluations per input.

    The metric walks one path of nested sets (eq. 6 by default) over at most 10 features. Section 4.1.a.
    """
    judge = _judge(metric, task)
    features = task.space.n_features
    if task.space.valid is not None or not 2 <= features <= LARGEST_ENUMERATION:
        raise InputError(
            f"an exhaustive study takes 2 to {LARGEST_ENUMERATION} features, the same in every sample; the "
            f"task has {features}. Use sampled_study, or group columns with Space.column_groups"
        )
    before = task.predictor.meter.cost
    gatherer = _Gatherer(task, judge, draws, Key(seed))
    for i in track(range(len(task)), "rankings", progress):
        scores = rankings_of(task[i], judge, seed)
        gatherer.add(scores.scores, scores.inverses, scores.scores)
    return gatherer.study(True, task.predictor.meter.cost - before)


def rankings_of(task: Task, metric: Any = None, seed: int = 0) -> RankingScores:
    """The quality of all D! rankings of a task's only sample and of their inverses, higher is better."""
    judge = _judge(metric, task)
    path = path_of(judge, task)
    if path is None:
        raise InputError(
            f"all rankings can be scored through subsets where a metric walks one path of nested sets; "
            f"'{judge.name}' does not"
        )
    if len(task) != 1:
        raise InputError(f"all rankings are scored for one sample at a time, got {len(task)}; use task[i]")
    responses = subset_responses(task, path, task.space.n_features, Key(seed) / judge.name)[0]
    sign = 1.0 if judge.better is Direction.HIGHER else -1.0
    return all_rankings(responses, sign * path.dense_weights(0, task.space.n_features).to(task.device))


@checked
def sampled_study(
    task: Task,
    metric: Any = None,
    *,
    rankings: Annotated[int, Within(3, MANY)] = 1000,
    draws: Count = 1,
    seed: int = 0,
    explanation: Any = None,
    independent_draws: bool = False,
    progress: bool | None = None,
) -> RankingStudy:
    """Judge QGE and QRAND_1..draws on a sample of rankings of each input (sections 4.1.b to d).

    Rankings carry the values of `explanation`, or 1..D where none is given. The random partners of QRAND are
    drawn from the same sample, so they cost nothing. `independent_draws` gives each map and its inverse
    draws of their own, as when a metric is run again and again.
    """
    judge = _judge(metric, task)
    if explanation is not None:
        explanation = as_explanation(explanation, task, seed).matching(task)
    before = task.predictor.meter.cost
    quality, inverse = _sampled(task, judge, rankings, Key(seed), explanation, independent_draws, progress)
    gatherer = _Gatherer(task, judge, draws, Key(seed))
    for i in range(len(task)):
        gatherer.add(quality[i], inverse[i], quality[i])
    return gatherer.study(False, task.predictor.meter.cost - before)


def _sampled(
    task: Task,
    judge: Metric,
    rankings: int,
    key: Key,
    explanation: Explanation | None,
    independent: bool,
    progress: bool | None,
) -> tuple[Tensor, Tensor]:
    """(N, rankings) each: the quality of random rankings and of their inverses, higher is better."""
    own = key / judge.name
    features, valid = task.space.n_features, task.space.valid

    def drawn(first: int, count: int) -> Tensor:
        which = torch.arange(first, first + count, device=task.device)
        return random_orders(key / "study", task.ids, which, features, valid)

    def turned(first: int, count: int) -> Tensor:
        return reversed_orders(drawn(first, count), valid)

    sign = 1.0 if judge.better is Direction.HIGHER else -1.0
    path = path_of(judge, task)
    if path is not None and not independent:
        quality, inverse = (
            rounded(sign * scores_along(task, path, orders, rankings, own).cpu())
            for orders in (drawn, turned)
        )
        return quality, inverse
    if explanation is None:
        plain = torch.arange(1.0, features + 1, dtype=torch.float64, device=task.device)
        explanation = Explanation(plain.expand(len(task), -1), task.space, task.targets, task.ids)
    columns = []
    # what a metric asks whatever the map, such as random subsets under one key, serves all rankings
    with nullcontext() if independent else sharing(task):
        for k in track(range(rankings), "rankings", progress):
            map_ = explanation.along(drawn(k, 1)[:, 0])
            if independent:
                outcomes = tuple(
                    judge.evaluate(task, m, own / k / i) for i, m in enumerate((map_, map_.inverted()))
                )
            else:
                outcomes = paired(judge, task, map_, map_.inverted(), own)
            columns.append(torch.stack([o.values.double() for o in outcomes]))
    values = rounded(sign * torch.stack(columns, -1).cpu())
    return values[0], values[1]


def _judge(metric: Any, task: Task) -> Metric:
    judge = KeptFeatures() if metric is None else as_metric(metric)
    if not isinstance(judge, Metric):
        raise InputError(f"a ranking study judges maps; '{judge.name}' judges methods")
    judge.check(task)
    return judge


class _Gatherer:
    """Collects the agreement of one input after another, so that only one input's rankings are held."""

    def __init__(self, task: Task, judge: Metric, draws: int, key: Key) -> None:
        self.task, self.judge, self.draws, self.key = task, judge, draws, key / "partners"
        self.rows: dict[str, list[Tensor]] = {n: [] for n in _AGREEMENT}
        self.histograms: dict[str, list[tuple[Tensor, Tensor]]] = {"quality": [], "gap": []}
        self.rankings = 0

    def add(self, quality: Tensor, inverse: Tensor, pool: Tensor) -> None:
        gap = rounded(quality - inverse)
        key = self.key / int(self.task.ids[len(self.rows["tau"])])
        kept = KeptOrder(quality)
        transformed = chain([gap], above_random(quality, pool, key, self.draws))
        found = zip(*map(kept.compare, transformed), strict=True)
        tau, rho, inside = (torch.stack(column) for column in found)
        self.rows["tau"].append(tau)
        self.rows["rho"].append(rho)
        self.rows["stratum_tau"].append(inside.T)
        self.rows["spread"].append(quality.std(correction=0))
        self.histograms["quality"].append(histogram(quality))
        self.histograms["gap"].append(histogram(gap))
        self.rankings = len(quality)

    def study(self, exhaustive: bool, cost: Cost) -> RankingStudy:
        def stacked(name: str) -> tuple[Tensor, Tensor]:
            edges, density = zip(*self.histograms[name], strict=True)
            return torch.stack(edges), torch.stack(density).cpu()

        return RankingStudy(
            self.judge.name,
            self.task.ids.cpu(),
            self.rankings,
            exhaustive,
            quality_histogram=stacked("quality"),
            gap_histogram=stacked("gap"),
            cost=cost,
            **{name: torch.stack(rows).cpu() for name, rows in self.rows.items()},
        )
