"""Standing: the place of an explanation among all rankings of its values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from veridical.api import as_explanation, as_metric
from veridical.errors import InputError
from veridical.masking.probe import match
from veridical.masking.shared_work import sharing
from veridical.metrics.base import Metric
from veridical.model.cost import Cost
from veridical.qge.gap import paired
from veridical.qge.paths import RankPath, path_of, scores_along
from veridical.qge.rankings import random_orders, reversed_orders
from veridical.qge.relative import IDENTICALLY_ZERO
from veridical.qge.subsets import LARGEST_COUNT, sampled_scores, share_below, subset_responses
from veridical.random.keyed import Key
from veridical.values.explanation import Explanation
from veridical.values.scores import Direction
from veridical.values.task import Task

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

LARGEST_BY_DEFAULT = 12
LOOKED_UP = 1000
"""Rankings that show the distribution where the percentile is exact: they cost no evaluation."""
_GRID = {torch.float64: 1e-9, torch.float32: 1e-6}


@dataclass(frozen=True, eq=False, repr=False)
class Standing:
    """For each sample: the share of all rankings that score lower (ties half), with its interval.

    `quality` and `sample` are negated where lower is better, so that higher always means better. `sample`
    (N, draws; at least 1000 where exact) holds scores of random rankings. `variance_ratio` is the variance
    of the estimate with antithetic pairs over that of as many plain draws: below 1, pairing helps; NaN where
    all rankings drawn stand on one side, so that there is none. `method` says how each percentile was found:
    "exact", "antithetic" or "plain".
    """

    metric: str
    explainer: str
    ids: Tensor
    quality: Tensor
    gap: Tensor
    percentile: Tensor
    low: Tensor
    high: Tensor
    variance_ratio: Tensor
    method: tuple[str, ...]
    sample: Tensor
    level: float
    cost: Cost
    flags: dict[str, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def variance_removed(self) -> Tensor:
        """The share of the variance (N,) that antithetic pairs take away; negative where they add to it."""
        return 1 - self.variance_ratio

    def to_frame(self) -> pd.DataFrame:
        """One row a sample."""
        import pandas as pd

        numbers = ("quality", "gap", "percentile", "low", "high", "variance_ratio")
        return pd.DataFrame(
            {
                "id": self.ids.cpu().numpy(),
                "metric": self.metric,
                "explainer": self.explainer,
                **{name: getattr(self, name).cpu().numpy() for name in numbers},
                "method": self.method,
            }
        )

    def plot(self, sample: int = 0, ax: Axes | None = None) -> Axes:
        """Draw where one sample's explanation stands among random rankings (the story of figure 1)."""
        from veridical.qge.plots import plot_standing

        return plot_standing(self, sample, ax)

    def __repr__(self) -> str:
        ways = ", ".join(f"{self.method.count(way)} {way}" for way in dict.fromkeys(self.method))
        middle = float(self.percentile.nanmedian()) if len(self) else float("nan")
        above = int((self.low > 0.5).sum())
        half = 50 * float((self.high - self.low).nanmean()) if len(self) else 0.0
        sure = f" (+-{half:.1f} points at {self.level:.0%})" if half > 0 else ""
        removed = 100 * float(self.variance_removed.nanmean()) if len(self) else float("nan")
        pairs = f"; pairs remove {removed:.0f}% of the variance" if removed == removed else ""
        notes = "".join(f"; {int(mask.sum())} flagged '{why}'" for why, mask in self.flags.items())
        return (
            f"Standing of {self.explainer} under {self.metric}: median percentile {100 * middle:.1f}{sure}, "
            f"above average for certain in {above} of {len(self)} samples ({ways}{pairs}{notes}), "
            f"cost {self.cost}"
        )


def standing(
    task: Task,
    metric: Any,
    explanation: Any,
    *,
    draws: int = 100,
    seed: int = 0,
    level: float = 0.95,
    exact: bool | None = None,
) -> Standing:
    """Where an explanation stands among all rankings of its own values, for each sample.

    Exact where the metric walks one path of nested sets (pixel flipping, deletion, insertion, kept features)
    over at most 12 features (14 with `exact=True`): 2^D - 1 evaluations stand for all D! rankings. Otherwise
    `draws` random rankings in antithetic pairs (r, r_inv); the pair is the sampling unit. Where pairing would
    raise the variance, half as many plain draws again replace the inverses.

    Every draw costs one evaluation of the metric. A hundred put the percentile within 10 points either way
    at 95%, mostly within 5; a thousand within 3.

    >>> import veridical as vd
    >>> task = vd.Task(torch.nn.Linear(4, 3), torch.ones(2, 4), fill=0.0)
    >>> vd.qge.standing(task, "pixel_flipping", "input_x_gradient").method
    ('exact', 'exact')
    """
    judge, explained = _read(task, metric, explanation, draws, seed, level)
    before = task.predictor.meter.cost
    # a map that is missing has no place; zeros stand in for it so that the others can be asked
    missing = explained.values.isnan().all(-1)
    explained = explained.with_values(explained.values.nan_to_num()) if bool(missing.any()) else explained
    own = Key(seed) / judge.name
    path = path_of(judge, task)
    most = int(task.space.counts(len(task)).max())
    if exact is None:
        exact = path is not None and most <= LARGEST_BY_DEFAULT
    if exact and (path is None or most > LARGEST_COUNT):
        reason = f"{most} features" if path is not None else "a metric that does not walk one path of sets"
        raise InputError(f"the exact standing of {reason} is out of reach; use exact=False")
    # what a metric asks whatever the map, such as random subsets, is asked once for all rankings
    with sharing(task):
        pair = paired(judge, task, explained, explained.inverted(), own)
        sign = 1.0 if judge.better is Direction.HIGHER else -1.0
        quality, inverse = (sign * outcome.values.double() for outcome in pair)
        draw = _Draws(judge, explained, path, sign, Key(seed) / "standing", own)
        if exact and path is not None:
            found = _exactly(task, path, explained, quality, draw, max(draws, LOOKED_UP))
        else:
            found = _sampled(task, quality, draw, draws, level)
    unknown = missing | quality.isnan()
    flags = {"no explanation": missing, "the metric has no value": quality.isnan() & ~missing}
    if judge.permutation_invariant:
        unknown, flags[IDENTICALLY_ZERO] = torch.ones_like(unknown), torch.ones_like(unknown)
    columns = {name: getattr(found, name).masked_fill(unknown, torch.nan) for name in _Found.numbers}
    return Standing(
        judge.name,
        explained.explainer,
        task.ids,
        quality.masked_fill(unknown, torch.nan),
        (quality - inverse).masked_fill(unknown, torch.nan),
        method=found.method,
        sample=found.sample,
        level=level,
        cost=task.predictor.meter.cost - before,
        flags={why: mask for why, mask in flags.items() if bool(mask.any())},
        **columns,
    )


def _read(
    task: Task, metric: Any, explanation: Any, draws: int, seed: int, level: float
) -> tuple[Metric, Explanation]:
    judge = as_metric(metric)
    if not isinstance(judge, Metric):
        raise InputError(f"a map has a standing; '{judge.name}' judges methods")
    judge.check(task)
    if draws < 4 or draws % 2:
        raise InputError(f"draws come in pairs and are at least 4, got {draws}")
    if not 0 < level < 1:
        raise InputError(f"level must lie between 0 and 1, got {level}")
    return judge, match(task, as_explanation(explanation, task, seed))


@dataclass(frozen=True, eq=False)
class _Draws:
    """Scores of random rankings that carry an explanation's values; the rankings follow the sample alone."""

    metric: Metric
    explanation: Explanation
    path: RankPath | None
    sign: float
    key: Key
    own: Key

    def orders(self, task: Task, first: int, count: int) -> Tensor:
        which = torch.arange(first, first + count, device=task.device)
        return random_orders(self.key, task.ids, which, task.space.n_features, task.space.valid)

    def pairs(self, task: Task, count: int) -> Tensor:
        """(N, count, 2): the scores of rankings and of their inverses."""
        if self.path is not None:
            # a ranking and then its inverse, drawn as they are asked for
            def both(first: int, rankings: int) -> Tensor:
                which = range(first // 2, (first + rankings + 1) // 2)
                orders = self.orders(task, which.start, len(which))
                turned = torch.stack([orders, reversed_orders(orders, task.space.valid)], 2).flatten(1, 2)
                return turned[:, first % 2 :][:, :rankings]

            scores = scores_along(task, self.path, both, 2 * count, self.own)
            return self.sign * scores.unflatten(1, (count, 2))
        orders = self.orders(task, 0, count)
        columns = []
        for k in range(count):
            map_ = self.explanation.along(orders[:, k])
            outcomes = paired(self.metric, task, map_, map_.inverted(), self.own)
            columns.append(torch.stack([o.values.double() for o in outcomes], -1))
        return self.sign * torch.stack(columns, 1)

    def plain(self, task: Task, explanation: Explanation, first: int, count: int) -> Tensor:
        """(n, count): the scores of further rankings, on a part of the task."""
        path = path_of(self.metric, task)
        if path is not None:
            return self.sign * scores_along(
                task, path, lambda at, n: self.orders(task, first + at, n), count, self.own
            )
        orders = self.orders(task, first, count)
        with sharing(task):
            columns = [
                self.metric.evaluate(task, explanation.along(orders[:, k]), self.own).values.double()
                for k in range(count)
            ]
        return self.sign * torch.stack(columns, 1)


@dataclass(frozen=True, eq=False)
class _Found:
    percentile: Tensor
    low: Tensor
    high: Tensor
    variance_ratio: Tensor
    method: tuple[str, ...]
    sample: Tensor
    numbers = ("percentile", "low", "high", "variance_ratio")


def places(sample: Tensor, quality: Tensor, tolerance: Tensor | float) -> Tensor:
    """1 where a score lies below the quality, 1/2 where it ties, 0 above."""
    difference = quality.reshape(-1, *[1] * (sample.dim() - 1)) - sample
    tied = difference.abs() <= tolerance
    return torch.where(tied, 0.5, (difference > 0).double())


def pairing(place: Tensor) -> Tensor:
    """The variance (N,) of a pair's mean over half that of one draw, of places in pairs (N, K, 2)."""
    single = place.var(dim=(1, 2), correction=0)
    # 0 / 0, which is NaN, where nothing varies
    return place.mean(-1).var(-1, correction=0) / (single / 2)


def interval(units: Tensor, level: float) -> tuple[Tensor, Tensor]:
    """An interval for the mean of sampling units (N, K) in [0, 1].

    Two units at 0 and two at 1 are added first (Agresti and Coull's rule): a percentile near 0 or 1 then
    keeps an honest width although all units agree.
    """
    extra = units.new_tensor([0.0, 0.0, 1.0, 1.0]).expand(len(units), 4)
    more = torch.cat([units, extra], 1)
    z = float(torch.special.ndtri(torch.tensor((1 + level) / 2, dtype=torch.float64)))
    half = z * more.std(-1) / more.shape[1] ** 0.5
    middle = more.mean(-1)
    return (middle - half).clamp(min=0.0), (middle + half).clamp(max=1.0)


def _tolerance(task: Task, quality: Tensor) -> Tensor:
    """Two steps of the grid on which responses lie: scores closer than this tie."""
    step = _GRID.get(task.inputs.dtype, 1e-6)
    return 2 * step * quality.abs().clamp(min=1.0)


def _exactly(
    task: Task, path: RankPath, explanation: Explanation, quality: Tensor, draw: _Draws, draws: int
) -> _Found:
    counts = task.space.counts(len(task))
    percentile = torch.empty_like(quality)
    sample = quality.new_empty(len(task), draws)
    tolerance = _tolerance(task, quality)
    for size in counts.unique().tolist():
        rows = (counts == size).nonzero()[:, 0]
        group = task[rows]
        part = path_of(draw.metric, group)
        assert part is not None
        tables = subset_responses(group, part, size, draw.own).cpu()
        orders = random_orders(draw.key, group.ids, torch.arange(draws // 2, device=task.device), size).cpu()
        for i, row in enumerate(rows.tolist()):
            weights = draw.sign * part.dense_weights(i, size).cpu()
            score, near = float(quality[row]), float(tolerance[row])
            percentile[row] = share_below(tables[i], weights, score, near)
            both = torch.cat([orders[i], orders[i].flip(-1)])
            sample[row] = sampled_scores(tables[i], weights, both).to(sample.device)
    halves = torch.stack(sample.chunk(2, 1), -1)
    ratio = pairing(places(halves, quality, tolerance[:, None, None]))
    return _Found(percentile, percentile, percentile, ratio, ("exact",) * len(task), sample)


def _sampled(task: Task, quality: Tensor, draw: _Draws, draws: int, level: float) -> _Found:
    tolerance = _tolerance(task, quality)
    pairs = draw.pairs(task, draws // 2)
    place = places(pairs, quality, tolerance[:, None, None])
    ratio = pairing(place)
    units = place.mean(-1)
    percentile = units.mean(-1)
    low, high = interval(units, level)
    sample = pairs.flatten(1)
    worse = (ratio > 1).nonzero()[:, 0]
    if len(worse):
        fresh = draw.plain(task[worse], draw.explanation.take(worse), draws // 2, draws - draws // 2)
        single = torch.cat([pairs[worse, :, 0], fresh], 1)
        sample[worse] = single
        units = places(single, quality[worse], tolerance[worse, None])
        percentile[worse] = units.mean(-1)
        low[worse], high[worse] = interval(units, level)
    plain = set(worse.tolist())
    method = tuple("plain" if i in plain else "antithetic" for i in range(len(task)))
    return _Found(percentile, low, high, ratio, method, sample)
