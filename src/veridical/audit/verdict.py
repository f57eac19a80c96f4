"""The verdict: which explainer to use, which not to trust, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from veridical.audit.redraws import redrawn_shares
from veridical.audit.statistics import (
    Agreement,
    above_controls,
    better_than,
    critical_difference,
    kendall_w,
    pairwise,
    resampled_scores,
    shares_beaten,
    weighed,
)
from veridical.errors import InputError
from veridical.values.scores import Scores

if TYPE_CHECKING:
    import pandas as pd

ALPHA = 0.05
CHANCE_CONSISTENCY = 0.5
"""The meta-consistency of a metric that always gives the same number."""
UNKNOWN_RELIABILITY = 0.5
"""The weight of a metric whose reliability could not be measured here."""


@dataclass(frozen=True)
class Judge:
    """One metric of an audit: the system it belongs to, whether it decides, its reliability and its weight.

    `ignored` says why it has no voice; it is empty for those that have one.
    """

    metric: str
    system: str
    decides: bool
    reliability: float = math.nan
    low: float = math.nan
    high: float = math.nan
    dependence: float = math.nan
    weight: float = 0.0
    ignored: str = ""


@dataclass(frozen=True)
class Place:
    """One explainer in the ranking: weighted share of rivals beaten, interval, chance of being best.

    `beats` tells for each control the Holm-corrected one-sided p-value of being above it.
    """

    explainer: str
    control: bool
    score: float
    low: float
    high: float
    p_best: float
    rank: float
    rank_low: float
    rank_high: float
    mean_rank: float
    beats: Mapping[str, float] = field(default_factory=dict)

    @property
    def trusted(self) -> bool:
        """Whether it is above every control for certain."""
        return not self.control and bool(self.beats) and max(self.beats.values()) < ALPHA


@dataclass(frozen=True)
class Pair:
    """Two explainers compared over samples."""

    a: str
    b: str
    difference: float
    p: float
    p_holm: float
    rank_biserial: float
    low: float = math.nan
    high: float = math.nan

    @property
    def significant(self) -> bool:
        """Whether the test over samples says so, and draws that all samples share could not undo it.

        `low` and `high` are the ends of the interval of the difference over resamples and re-drawings.
        """
        return self.p_holm < ALPHA and not self.low <= 0 <= self.high


@dataclass(frozen=True, eq=False)
class Verdict:
    """The ranking of explainers with its uncertainty; `sentences` say it in words."""

    places: tuple[Place, ...]
    judges: tuple[Judge, ...]
    pairs: tuple[Pair, ...]
    kendall_w: float
    kendall_p: float
    with_rest: Mapping[str, float]
    friedman_p: float
    critical_difference: float
    groups: tuple[tuple[str, ...], ...]
    shares: Mapping[str, Mapping[str, float]]
    samples: int
    level: float
    sentences: tuple[str, ...] = ()

    @property
    def ranking(self) -> tuple[Place, ...]:
        """The candidates, best first."""
        return tuple(place for place in self.places if not place.control)

    @property
    def controls(self) -> tuple[Place, ...]:
        return tuple(place for place in self.places if place.control)

    @property
    def best(self) -> str | None:
        """The explainer to use: the first that beats every control; None when there is none."""
        return next((place.explainer for place in self.ranking if place.trusted), None)

    @property
    def testable(self) -> bool:
        """Whether enough samples and a control are there for any method to come out above for certain."""
        return bool(self.controls) and self.comparisons * 0.5**self.samples < ALPHA

    @property
    def comparisons(self) -> int:
        """How many comparisons of an explainer with a control are corrected together."""
        return len(self.ranking) * len(self.controls)

    @property
    def deciding(self) -> tuple[Judge, ...]:
        """The metrics that had a voice."""
        return tuple(judge for judge in self.judges if judge.weight > 0)

    def equals_of(self, explainer: str) -> tuple[str, ...]:
        """Candidates that cannot be told apart from this one."""
        out = [
            p.b if p.a == explainer else p.a
            for p in self.pairs
            if explainer in (p.a, p.b) and not p.significant
        ]
        names = {place.explainer for place in self.ranking}
        return tuple(name for name in out if name in names)

    def to_frame(self) -> pd.DataFrame:
        """One row per explainer, controls last."""
        import pandas as pd

        return pd.DataFrame(
            [
                {
                    "explainer": p.explainer,
                    "control": p.control,
                    "score": p.score,
                    "low": p.low,
                    "high": p.high,
                    "p_best": p.p_best,
                    "rank": p.rank,
                    "rank_low": p.rank_low,
                    "rank_high": p.rank_high,
                    "mean_rank": p.mean_rank,
                    "trusted": p.trusted,
                    **{f"p_beats_{name}": p_value for name, p_value in p.beats.items()},
                }
                for p in self.places
            ]
        )


def decide(
    scores: Mapping[tuple[str, str], Scores],
    explainers: Sequence[str],
    controls: Sequence[str],
    judges: Sequence[Judge],
    *,
    weight_draws: Mapping[str, Tensor] | None = None,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Verdict:
    """Weigh the metrics, rank the explainers, and test what the ranking rests on.

    Every metric turns into the share of rivals an explainer beats in each sample; each system has one voice,
    divided among its metrics in proportion to their reliability. `weight_draws` holds resampled reliabilities
    of the metrics, by which their own uncertainty reaches the ranking; GEF's noisy weights, which all samples
    share, are drawn again among those that were.
    """
    methods = [*explainers, *controls]
    if len(set(methods)) < len(methods):
        raise InputError(f"every explainer and control needs a name of its own, got {', '.join(methods)}")
    utility = _utility(scores, methods, judges)
    shares = torch.stack([shares_beaten(utility[:, m]) for m in range(len(judges))], 1)
    heard = _with_weights(judges, shares)
    weights = torch.tensor([j.weight for j in heard], dtype=torch.float64)
    table_of = {
        who: {j.metric: float(shares[e, m].nanmean()) for m, j in enumerate(heard)}
        for e, who in enumerate(methods)
    }
    if not bool((weights > 0).any()):
        return _silent(methods, controls, heard, table_of, shares.shape[-1], level)
    draws = _weight_draws(heard, weight_draws)
    candidates = torch.tensor([who in explainers for who in methods])
    redrawn = {
        m: drawn
        for m, judge in enumerate(heard)
        if judge.weight > 0 and (drawn := redrawn_shares(scores, methods, judge.metric, seed)) is not None
    }
    found = resampled_scores(
        shares,
        weights,
        candidates,
        weight_draws=draws,
        redrawn=redrawn,
        level=level,
        resamples=resamples,
        seed=seed,
    )
    table = weighed(shares, weights)
    count = len(explainers)
    p_above = torch.empty(count, 0)
    if controls:
        p_above = better_than(above_controls(shares, weights, ~candidates, utility.isnan()))[1]
    tests = pairwise(table)
    spread = critical_difference(table, ALPHA)
    places = [
        Place(
            who,
            e >= count,
            float(found.score[e]),
            float(found.low[e]),
            float(found.high[e]),
            float(found.best[e]),
            float(found.rank[e]),
            float(found.rank_low[e]),
            float(found.rank_high[e]),
            float(spread.mean_rank[e]),
            {name: float(p_above[e, c]) for c, name in enumerate(controls)} if e < count else {},
        )
        for e, who in enumerate(methods)
    ]
    voices = [m for m, j in enumerate(heard) if j.weight > 0]
    agreement = kendall_w(shares[:, voices].nanmean(-1).T) if len(voices) > 1 else None
    return Verdict(
        tuple(sorted(places, key=lambda p: (p.control, -p.score))),
        heard,
        tuple(
            Pair(
                methods[a],
                methods[b],
                float(tests.difference[i]),
                float(tests.p[i]),
                float(tests.p_holm[i]),
                float(tests.rank_biserial[i]),
                float(found.gap_low[a, b]),
                float(found.gap_high[a, b]),
            )
            for i, (a, b) in enumerate(tests.members.tolist())
        ),
        *_agreement(agreement, [heard[m].metric for m in voices]),
        spread.friedman_p,
        spread.difference,
        tuple(tuple(methods[e] for e in group) for group in spread.groups),
        table_of,
        shares.shape[-1],
        level,
    )


def _utility(
    scores: Mapping[tuple[str, str], Scores], methods: Sequence[str], judges: Sequence[Judge]
) -> Tensor:
    """Scores (E, M, N), higher is better; a cell that failed has no value."""
    nothing = torch.full((len(next(iter(scores.values()))),), torch.nan, dtype=torch.float64)
    cells = [
        scores[who, judge.metric].utility.cpu() if (who, judge.metric) in scores else nothing
        for who in methods
        for judge in judges
    ]
    return torch.stack(cells).unflatten(0, (len(methods), len(judges)))


def _with_weights(judges: Sequence[Judge], shares: Tensor) -> tuple[Judge, ...]:
    """Give each system one voice, as loud as its most reliable metric, divided among them by reliability."""
    silent = "it has no value in any sample"
    judges = [
        replace(judge, ignored=judge.ignored or (silent if bool(shares[:, m].isnan().all()) else ""))
        for m, judge in enumerate(judges)
    ]
    merit = [_merit(j.reliability) if j.decides and not j.ignored else 0.0 for j in judges]
    of_system: dict[str, list[float]] = {}
    for judge, value in zip(judges, merit, strict=True):
        of_system.setdefault(judge.system, []).append(value)
    voice = {system: max(values) / (sum(values) or 1.0) for system, values in of_system.items()}
    total = sum(value * voice[j.system] for j, value in zip(judges, merit, strict=True)) or 1.0
    return tuple(
        replace(judge, weight=value * voice[judge.system] / total)
        for judge, value in zip(judges, merit, strict=True)
    )


def _merit(reliability: float) -> float:
    return UNKNOWN_RELIABILITY if math.isnan(reliability) else max(0.0, reliability)


def _weight_draws(judges: Sequence[Judge], given: Mapping[str, Tensor] | None) -> Tensor | None:
    """Resampled weights (B, M): each metric's weight moves in proportion to its resampled reliability."""
    if not given:
        return None
    length = max((len(draws) for draws in given.values()), default=0)
    if not length:
        return None
    columns = []
    for judge in judges:
        draws = given.get(judge.metric)
        if judge.weight <= 0 or draws is None or not len(draws) or not judge.reliability > 0:
            columns.append(torch.full((length,), judge.weight, dtype=torch.float64))
            continue
        centred = draws.double() - draws.double().nanmean() + judge.reliability
        moved = centred.nan_to_num(judge.reliability).clamp(0.0, 1.0) / judge.reliability
        columns.append(judge.weight * moved[torch.arange(length) % len(moved)])
    return torch.stack(columns, 1)


def _agreement(found: Agreement | None, names: Sequence[str]) -> tuple[float, float, dict[str, float]]:
    if found is None:
        return math.nan, math.nan, {}
    return found.w, found.p, dict(zip(names, found.with_rest.tolist(), strict=True))


def _silent(
    methods: Sequence[str],
    controls: Sequence[str],
    judges: tuple[Judge, ...],
    shares: Mapping[str, Mapping[str, float]],
    samples: int,
    level: float,
) -> Verdict:
    """The verdict when no metric has a voice: nobody is ranked."""
    nan = math.nan
    places = tuple(Place(who, who in controls, nan, nan, nan, nan, nan, nan, nan, nan) for who in methods)
    return Verdict(places, judges, (), nan, nan, {}, nan, nan, (), shares, samples, level)
