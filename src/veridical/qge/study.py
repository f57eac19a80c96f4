"""Ranking studies: how well QGE and QRAND keep the order of a quality, over all or many rankings (R2)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import torch
from torch import Tensor

from veridical.api import as_explanation, as_metric
from veridical.core import key as keyed
from veridical.core.allowed import MANY, Count, Within
from veridical.core.key import Key
from veridical.core.progress import track
from veridical.core.settings import checked
from veridical.errors import InputError
from veridical.functional import average_ranks, kendall_tau_b, pearson
from veridical.metrics.base import Metric
from veridical.models.context import Context
from veridical.models.cost import Cost
from veridical.qge.kept_features import KeptFeatures
from veridical.qge.standing import MapRankings
from veridical.qge.subsets import LARGEST_ENUMERATION, RankingScores, all_rankings, rounded, steps_of
from veridical.values.explanation import Explanation
from veridical.values.task import Task

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


@dataclass(frozen=True, eq=False, repr=False)
class RankingStudy:
    """Agreement of a quality q with QGE and QRAND_K over many rankings of each input.

    `tau` and `rho` (inputs, 1 + K) hold QGE first, then QRAND_1..K; `spread` (inputs,) is the standard
    deviation of q over the rankings.
    """

    metric: str
    ids: Tensor
    rankings: int
    exhaustive: bool
    tau: Tensor
    rho: Tensor
    spread: Tensor
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

        inputs, columns = self.tau.shape
        return pd.DataFrame(
            {
                "id": self.ids.repeat_interleave(columns).tolist(),
                "metric": self.metric,
                "transform": self.transforms * inputs,
                "tau": self.tau.flatten().tolist(),
                "rho": self.rho.flatten().tolist(),
                "spread": self.spread.repeat_interleave(columns).tolist(),
                "rankings": self.rankings,
            }
        )

    def plot(self, ax: Axes | None = None, rho: bool = False) -> Axes:
        """Draw tau (or rho) of QRAND_K over K, and of QGE: mean and deviation over inputs (figure 2)."""
        from veridical.plots import COLOURS, axes

        ax = axes(ax)
        table = (self.rho if rho else self.tau).cpu()
        mean = table.nanmean(0)
        std = ((table - mean) ** 2).nanmean(0).sqrt()
        k = range(1, table.shape[1])
        ax.set_xticks(k[:: 1 + len(k) // 6])
        ax.fill_between(k, mean[1:] - std[1:], mean[1:] + std[1:], color=COLOURS[0], alpha=0.2, linewidth=0)
        ax.plot(k, mean[1:], color=COLOURS[0], marker="o", label="QRAND$_K$")
        ax.axhline(float(mean[0]), color=COLOURS[1], label="QGE")
        for side in (-1, 1):
            ax.axhline(float(mean[0] + side * std[0]), color=COLOURS[1], linewidth=0.8, linestyle="--")
        ax.set_xlabel("random rankings K")
        ax.set_ylabel("Spearman's rho with q" if rho else "Kendall's tau with q")
        ax.legend(fontsize=8)
        return ax

    def __repr__(self) -> str:
        what = "all" if self.exhaustive else "sampled"
        return (
            f"Ranking study of {self.metric}: {len(self)} inputs x {self.rankings:,} {what} rankings; "
            f"tau(q, QGE) {_spread(self.tau[:, 0])}, gain over QRAND_1 {_spread(self.gain_tau)}, "
            f"cost {self.cost}"
        )


def _spread(values: Tensor) -> str:
    return f"{float(values.mean()):.3f} +- {float(values.std(correction=0)):.3f}"


@checked
def exhaustive_study(
    task: Task, metric: Any = None, *, draws: Count = 10, seed: int = 0, progress: bool | None = None
) -> RankingStudy:
    """Compare QGE and QRAND_1..draws with the quality on all D! rankings of each input (section 4.1.a).

    2^D - 1 evaluations per input stand for all rankings.

    Parameters
    ----------
    task : Task
        Samples of 2 to 10 features, the same number in each.
    metric : Metric or str, optional
        A metric that walks one path of nested sets; None is `KeptFeatures` (eq. 6).
    draws : int
        The largest K of QRAND_K.
    seed : int
        Seed of the random partners.
    progress : bool, optional
        Whether a bar is shown; None shows it on terminals.

    Returns
    -------
    RankingStudy
        Kendall's tau and Spearman's rho of the quality with QGE and with each QRAND_K.
    """
    scorer = _scorer(metric, task)
    features = task.space.n_features
    if task.space.valid is not None or not 2 <= features <= LARGEST_ENUMERATION:
        raise InputError(
            f"an exhaustive study takes 2 to {LARGEST_ENUMERATION} features, the same in every sample; the "
            f"task has {features}. Use sampled_study, or group columns with Space.column_groups"
        )
    before = task.predictor.meter.cost
    found = (rankings_of(task[i], scorer, seed) for i in track(range(len(task)), "rankings", progress))
    return _study(task, scorer, found, draws, Key(seed), True, before)


def rankings_of(task: Task, metric: Any = None, seed: int = 0) -> RankingScores:
    """The quality of all D! rankings of a task's only sample and of their inverses, higher is better."""
    scorer = _scorer(metric, task)
    if len(task) != 1:
        raise InputError(f"all rankings are scored for one sample at a time, got {len(task)}; use task[i]")
    steps = steps_of(scorer, task, task.space.n_features, Context(Key(seed) / scorer.name))
    if steps is None:
        raise InputError(
            f"all rankings can be scored through subsets where a metric walks one path of nested sets; "
            f"'{scorer.name}' does not"
        )
    return all_rankings(steps[0])


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
    """Compare QGE and QRAND_1..draws with the quality on a sample of rankings (sections 4.1.b to d).

    Parameters
    ----------
    task : Task
        The samples, of any number of features.
    metric : Metric or str, optional
        The metric whose score is the quality; None is `KeptFeatures` (eq. 6).
    rankings : int
        Random rankings per input. The random partners of QRAND are among them, so they cost nothing.
    draws : int
        The largest K of QRAND_K.
    seed : int
        Seed of rankings and partners.
    explanation : Explanation, Tensor, Explainer or str, optional
        Whose values the rankings carry; None is 1..D.
    independent_draws : bool
        Whether each map and its inverse meet random draws of their own, as when a metric is run again.
    progress : bool, optional
        Whether a bar is shown; None shows it on terminals.

    Returns
    -------
    RankingStudy
        Kendall's tau and Spearman's rho of the quality with QGE and with each QRAND_K.
    """
    scorer = _scorer(metric, task)
    if explanation is not None:
        explanation = as_explanation(explanation, task, seed).matching(task)
    before = task.predictor.meter.cost
    found = sampled_rankings(task, scorer, rankings, Key(seed), explanation, independent_draws, progress)
    return _study(task, scorer, iter(found), draws, Key(seed), False, before)


def sampled_rankings(
    task: Task,
    scorer: Metric,
    rankings: int,
    key: Key,
    explanation: Explanation | None,
    independent: bool,
    progress: bool | None,
) -> list[RankingScores]:
    """The quality of random rankings of each sample and of their inverses, higher is better."""
    if explanation is None:
        plain = torch.arange(1.0, task.space.n_features + 1, dtype=torch.float64, device=task.device)
        plain = plain.expand(len(task), -1)
        explanation = Explanation(plain, task.space, task.targets, task.ids, draw_ids=task.draw_ids)
    own = Context(key / scorer.name)
    drawn = MapRankings(scorer, explanation, key / "study", own, independent, progress)
    pairs = rounded(drawn.scores(task, 0, 2 * rankings, True).cpu()).unflatten(1, (-1, 2))
    return [RankingScores(*each.unbind(-1)) for each in pairs]


def _scorer(metric: Any, task: Task) -> Metric:
    scorer = KeptFeatures() if metric is None else as_metric(metric)
    if not isinstance(scorer, Metric):
        raise InputError(f"a ranking study judges maps; '{scorer.name}' judges methods")
    scorer.check(task)
    return scorer


def transforms_of(scores: RankingScores, key: Key, draws: int) -> Iterator[Tensor]:
    """QGE of every ranking, then QRAND_1..QRAND_draws, each ranking's random partners drawn for it alone.

    One after the other, since all rankings of ten features take 29 MB each time.
    """
    quality = scores.scores
    yield scores.gaps
    total, ids = torch.zeros_like(quality), torch.arange(len(quality), device=quality.device)
    for k in range(draws):
        total += quality[keyed.integers(key / "rankings", ids, k, 1, len(quality))[:, 0]]
        yield quality - total / (k + 1)


def partner_key(key: Key, sample: Tensor) -> Key:
    """The key of the random partners of one sample, by its id."""
    return key / "partners" / int(sample)


def _study(
    task: Task,
    metric: Metric,
    found: Iterator[RankingScores],
    draws: int,
    key: Key,
    exhaustive: bool,
    before: Cost,
) -> RankingStudy:
    """Compare orders for one input after the other, so that only one input's rankings are held."""
    columns: dict[str, list[Tensor]] = {"tau": [], "rho": [], "spread": []}
    rankings = 0
    for sample, scores in zip(task.draw_ids, found, strict=True):
        quality, rankings = scores.scores, len(scores.scores)
        # sorted once: what is in order already, the comparisons need not sort again
        ordered, order = quality.sort()
        ranks = average_ranks(ordered)
        # ranks tie where values do, and have few digits: they are the faster to sort for tau
        others = (average_ranks(o[order]) for o in transforms_of(scores, partner_key(key, sample), draws))
        pairs = [(kendall_tau_b(ranks, other), pearson(ranks, other)) for other in others]
        tau, rho = (torch.stack(column) for column in zip(*pairs, strict=True))
        for name, value in (("tau", tau), ("rho", rho), ("spread", quality.std(correction=0))):
            columns[name].append(value)
    stacked = {name: torch.stack(rows).cpu() for name, rows in columns.items()}
    cost = task.predictor.meter.cost - before
    return RankingStudy(metric.name, task.ids.cpu(), rankings, exhaustive, cost=cost, **stacked)
