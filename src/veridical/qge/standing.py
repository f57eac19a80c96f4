"""Standing: the place of an explanation among all rankings of its values."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from scipy import special
from torch import Tensor

from veridical.api import as_explanation, as_metric
from veridical.core.allowed import Between, Count
from veridical.core.key import Key
from veridical.core.progress import track
from veridical.core.settings import checked
from veridical.errors import InputError
from veridical.metrics.base import CONSTANT, AnyMetric, Metric
from veridical.models.context import Context
from veridical.models.cost import Cost
from veridical.models.output_heads import UNSTEADY
from veridical.perturb.subset_table import places_of
from veridical.qge.gap import IDENTICALLY_ZERO, MapGap, paired
from veridical.qge.paths import path_of, random_orders, reversed_orders, scores_along
from veridical.qge.subsets import (
    LARGEST_COUNT,
    best_and_worst,
    sampled_scores,
    shares_below,
    sign_of,
    steps_of,
)
from veridical.values.explanation import Explanation
from veridical.values.task import Task
from veridical.values.ties import MOST_ORDERS, TieOrders, agreeing_orders

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

LARGEST_BY_DEFAULT = 12
LOOKED_UP = 1000
"""Rankings that show the distribution where the percentile is exact: they cost no evaluation."""
LOOK_UPS = 2**24
"""Look-ups per sample that the rankings a tied map stands for may take: the 7! of a map of 8 features fit."""
TIE_WITHIN = {torch.float64: 1e-9, torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 1e-2}
"""How close two scores are, as a share of the largest of their sample, to tie in each precision."""


@dataclass(frozen=True, eq=False, repr=False)
class Standing:
    """For each sample: the share of all rankings that score lower (ties half), with its interval.

    `quality` and `sample` are negated where lower is better, so that higher always means better. `sample`
    (N, draws; at least 1000 where exact) holds scores of random rankings. `variance_ratio` is the variance
    of the estimate with antithetic pairs over that of as many plain draws: below 1, pairing helps; NaN where
    nothing is drawn, or all rankings drawn stand on one side. `method` says how each percentile was found:
    "exact", "ties drawn", "antithetic" or "plain". A map with ties has the mean place of the rankings that
    agree with it: of all where the method is "exact"; where they are too many each place is exact and its
    mean over draws of them has an interval. In both cases `best` and `worst` are the quality of the best and
    the worst ranking there is.
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
    flags: dict[str, Tensor]
    best: Tensor
    """The quality that the best of all rankings reaches (N,), NaN where that is not known."""
    worst: Tensor
    """The quality of the worst of all rankings (N,), NaN where that is not known."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def reached(self) -> Tensor:
        """How far between the worst and the best reachable ranking it lies (N,): 1 is the best there is."""
        return (self.quality - self.worst) / (self.best - self.worst)

    def to_frame(self) -> pd.DataFrame:
        """One row per sample."""
        import pandas as pd

        numbers = "quality gap percentile low high variance_ratio best worst reached".split()
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
        from veridical.plots import COLOURS, axes

        ax = axes(ax)
        scores = self.sample[sample].cpu()
        scores = scores[~scores.isnan()]
        ax.hist(scores, bins=40, density=True, color="0.8", label="random rankings of the same values")
        own = float(self.quality[sample])
        inverse = own - float(self.gap[sample])
        ax.axvline(own, color=COLOURS[1], linewidth=2, label=self.explainer)
        ax.axvline(inverse, color=COLOURS[0], linewidth=1.5, linestyle="--", label="its inverse")
        place, low, high = (100 * float(getattr(self, n)[sample]) for n in ("percentile", "low", "high"))
        spread = "exactly" if self.method[sample] == "exact" else f"[{low:.1f}, {high:.1f}]"
        ax.set_title(f"better than {place:.1f}% of rankings ({spread}); QGE {own - inverse:+.3g}", fontsize=9)
        ax.set_xlabel(f"quality: {self.metric.replace('_', ' ')} (higher is better)")
        ax.set_yticks([])
        ax.legend(fontsize=7)
        return ax

    def __repr__(self) -> str:
        ways = ", ".join(f"{self.method.count(way)} {way}" for way in dict.fromkeys(self.method))
        middle = float(self.percentile.nanmedian()) if len(self) else float("nan")
        above = int((self.low > 0.5).sum())
        half = 50 * float((self.high - self.low).nanmean()) if len(self) else 0.0
        sure = f" (+-{half:.1f} points at {self.level:.0%})" if half > 0 else ""
        removed = 100 * float(1 - self.variance_ratio.nanmean()) if len(self) else float("nan")
        pairs = f"; pairs remove {removed:.0f}% of the variance" if removed == removed else ""
        far = float(self.reached.nanmedian()) if len(self) else float("nan")
        pairs += f"; {far:.0%} of the way from the worst ranking to the best" if far == far else ""
        notes = "".join(f"; {int(mask.sum())} flagged '{why}'" for why, mask in self.flags.items())
        return (
            f"Standing of {self.explainer} under {self.metric}: median percentile {100 * middle:.1f}{sure}, "
            f"above average for certain in {above} of {len(self)} samples ({ways}{pairs}{notes}), "
            f"cost {self.cost}"
        )


@checked
def standing(
    task: Task,
    metric: Any,
    explanation: Any,
    *,
    draws: Count = 100,
    seed: int = 0,
    level: Between = 0.95,
    exact: bool | None = None,
) -> Standing:
    """Place an explanation among all rankings of its own values, for each sample.

    Exact where the metric, or the metric whose gap it is, walks one path of nested sets (pixel flipping,
    deletion, insertion, kept features) over at most 12 features: 2^D - 1 evaluations stand for all D!
    rankings, and tell the best that any ranking reaches. Otherwise random rankings are drawn in antithetic
    pairs (r, r_inv), the pair being the sampling unit; where pairing would raise the variance, half as many
    plain draws again replace the inverses. Every draw costs one evaluation of the metric: a hundred put the
    percentile within 10 points either way at 95%, mostly within 5; a thousand within 3.

    Parameters
    ----------
    task : Task
        The model and the samples.
    metric : Metric or str
        The metric that scores rankings, or its name; not one that judges methods.
    explanation : Explanation, Tensor, Explainer or str
        The maps, or who makes them.
    draws : int
        Random rankings per sample, an even number of at least 4.
    seed : int
        Seed of the random rankings and of the metric's own draws.
    level : float
        Confidence level of the intervals.
    exact : bool, optional
        True demands the exact percentile (up to 14 features), False samples it; None is exact if possible.

    Returns
    -------
    Standing
        Percentile and interval of each sample, and the scores of the random rankings.

    Raises
    ------
    InputError
        Where draws are odd or fewer than 4, or the exact standing is out of reach.

    Examples
    --------
    >>> import veridical as vd
    >>> task = vd.Task(torch.nn.Linear(4, 3), torch.ones(2, 4), fill=0.0)
    >>> vd.qge.standing(task, "pixel_flipping", "input_x_gradient").method
    ('exact', 'exact')
    """
    scorer = as_metric(metric)
    scorer.check(task)
    if draws < 4 or draws % 2:
        raise InputError(f"draws come in pairs: an even number of at least 4, got {draws!r}")
    if not isinstance(scorer, Metric):
        raise InputError(
            f"a standing places maps among rankings of their values; '{scorer.name}' judges methods"
        )
    # what a metric evaluates whatever the map, such as random subsets, is evaluated once for all rankings
    own = Context(Key(seed) / scorer.name)
    explained = as_explanation(explanation, task, seed).matching(task)
    before = task.predictor.meter.cost
    missing, constant = explained.missing, ~explained.spread
    # a map that is missing has no place; zeros stand in for it so that the others can be placed
    explained = explained.with_values(explained.values.nan_to_num()) if bool(missing.any()) else explained
    maps = MapRankings(scorer, explained, Key(seed) / "standing", own)
    steps = _all_steps(task, scorer, own, exact)
    if steps is None:
        columns, sample, how = _sampled(task, maps, draws, level)
    else:
        columns, sample, how = _exactly(task, steps, maps, max(draws, LOOKED_UP), level)
    quality, inverse = columns.pop("quality"), columns.pop("inverse")
    unknown = missing | quality.isnan()
    # a map that ranks nothing stands for every ranking there is, and half of these are below the others
    columns |= {name: columns[name].masked_fill(constant, 0.5) for name in ("percentile", "low", "high")}
    how = tuple("exact" if flat else way for flat, way in zip(constant.tolist(), how, strict=True))
    flags = {
        "no explanation": missing,
        "the metric has no value": quality.isnan() & ~missing,
        CONSTANT: constant & ~missing,
        UNSTEADY: torch.full_like(missing, task.moves > 0),
    }
    if scorer.permutation_invariant:
        unknown, flags[IDENTICALLY_ZERO] = torch.ones_like(unknown), torch.ones_like(unknown)
    columns |= {"quality": quality, "gap": quality - inverse}
    return Standing(
        scorer.name,
        explained.explainer,
        task.ids,
        method=how,
        sample=sample,
        level=level,
        cost=task.predictor.meter.cost - before,
        flags={why: mask for why, mask in flags.items() if bool(mask.any())},
        **{name: column.masked_fill(unknown, torch.nan) for name, column in columns.items()},
    )


_Columns = dict[str, Tensor]
"""What is found per sample: quality, inverse, percentile, low, high, variance_ratio, best, worst."""
_Found = tuple[_Columns, Tensor, tuple[str, ...]]


def _all_steps(
    task: Task, scorer: Metric, context: Context, exact: bool | None
) -> list[tuple[Tensor, Tensor]] | None:
    """For samples of each number of features: which they are, and what each of their sets adds to a score."""
    counts = task.space.counts(len(task))
    most = int(counts.max())
    found = []
    if exact is not False and most <= (LARGEST_COUNT if exact else LARGEST_BY_DEFAULT):
        for size in counts.unique().tolist():
            rows = (counts == size).nonzero()[:, 0]
            steps = steps_of(scorer, task if len(rows) == len(task) else task[rows], size, context)
            if steps is None:
                break
            found.append((rows, steps))
    if not found and exact:
        reason = (
            f"{most} features" if most > LARGEST_COUNT else "a metric that does not walk one path of sets"
        )
        raise InputError(f"the exact standing of {reason} is out of reach; use exact=False")
    return found or None


def _exactly(
    task: Task, groups: list[tuple[Tensor, Tensor]], rankings: MapRankings, draws: int, level: float
) -> _Found:
    """Count all rankings through their subsets, for every ranking that agrees with a map."""
    explanation, key, places = rankings.explanation, rankings.key, places_of(task)
    names = "quality inverse percentile low high best worst variance_ratio".split()
    table = torch.full((len(names), len(task)), torch.nan, dtype=torch.float64)
    columns = dict(zip(names, table, strict=True))
    sample = torch.empty(len(task), draws, dtype=torch.float64)
    how = ["exact"] * len(task)
    forward = _flips_least_relevant_first(rankings.metric, task)
    for rows, on_device in groups:
        steps = on_device.cpu()
        size = steps.shape[-1].bit_length() - 1
        orders = random_orders(
            key, task.draw_ids[rows], torch.arange(draws // 2, device=task.device), size
        ).cpu()
        columns["best"][rows], columns["worst"][rows] = best_and_worst(steps)
        most = max(MOST_ORDERS, LOOK_UPS // (math.comb(size, size // 2) * math.factorial(size // 2)))
        for i, row in enumerate(rows.tolist()):
            sample[row] = sampled_scores(steps[i], torch.cat([orders[i], orders[i].flip(-1)]))
            agreeing, complete = agreeing_orders(explanation, row, most, key)
            along = places[row][agreeing].cpu()
            along = along if forward else along.flip(-1)
            quality, inverse = (sampled_scores(steps[i], each) for each in (along, along.flip(-1)))
            near = tie_tolerance(task, *(columns[name][row : row + 1] for name in ("best", "worst")))
            share = shares_below(steps[i], quality, float(near))
            half = 0.0 if complete else _t(level, len(share)) * float(share.std()) / len(share) ** 0.5
            how[row] = "exact" if complete else "ties drawn"
            middle = float(share.mean())
            ends = (max(0.0, middle - half), min(1.0, middle + half))
            table[:5, row] = table.new_tensor([float(quality.mean()), float(inverse.mean()), middle, *ends])
    there = {name: column.to(task.device) for name, column in columns.items()}
    return there, sample.to(task.device), tuple(how)


def _flips_least_relevant_first(metric: AnyMetric, task: Task) -> bool:
    """Whether the path a metric walks, or the metric whose gap it is, removes the least relevant first."""
    while isinstance(metric, MapGap):
        metric = metric.metric
    path = path_of(metric, task)
    return path is not None and not path.most_relevant_first


def _sampled(task: Task, rankings: MapRankings, draws: int, level: float) -> _Found:
    """Draw rankings in pairs; samples whose variance that would raise get plain draws."""
    each, inverse, drawn = rankings.agreeing(task)
    sample = rankings.scores(task, 0, draws, True)
    place = places(sample, each, tie_tolerance(task, each, sample))
    ratio = pairing(place.nanmean(-1).unflatten(1, (-1, 2)))
    numbers = _summary(place, drawn, level, True)
    plain = (ratio > 1).nonzero()[:, 0]
    if len(plain):
        part = task[plain]
        fresh = rankings.take(plain).scores(part, draws // 2, draws // 2, False)
        sample[plain] = torch.cat([sample[plain, ::2], fresh], 1)
        near = tie_tolerance(part, each[plain], sample[plain])
        numbers[:, plain] = _summary(places(sample[plain], each[plain], near), drawn[plain], level, False)
    columns = dict(zip(("percentile", "low", "high"), numbers, strict=True))
    columns |= {"variance_ratio": ratio, "quality": each.nanmean(-1), "inverse": inverse.nanmean(-1)}
    columns |= dict.fromkeys(("best", "worst"), torch.full_like(ratio, torch.nan))
    return columns, sample, tuple("plain" if worse else "antithetic" for worse in (ratio > 1).tolist())


def _summary(place: Tensor, drawn: Tensor, level: float, paired: bool) -> Tensor:
    """The percentile with its interval (3, N) from places (N, draws, rankings that agree with the map).

    Where these rankings are `drawn` (N,) their own variance joins that of the random ones.
    """
    single = place.nanmean(-1)
    units = single.unflatten(1, (-1, 2)).mean(-1) if paired else single
    low, high = interval(units, level)
    by_order = place.mean(1)
    many = (~by_order.isnan()).sum(-1)
    apart = (by_order - by_order.nanmean(-1, keepdim=True)).square().nansum(-1) / (many - 1).clamp(min=1)
    ties = torch.where(drawn, _t(level, MOST_ORDERS) * (apart / many).sqrt(), 0.0)
    middle = (low + high) / 2
    half = (((high - low) / 2).square() + ties.square()).sqrt()
    return torch.stack([units.mean(-1), (middle - half).clamp(min=0.0), (middle + half).clamp(max=1.0)])


def _t(level: float, count: int) -> float:
    """The two-sided quantile of Student's t for a mean over so many draws."""
    return float(special.stdtrit(count - 1, (1 + level) / 2))


@dataclass(frozen=True, eq=False)
class MapRankings:
    """Scores of rankings that carry an explanation's values; random ones follow the sample alone.

    With `independent_draws` each meets random draws of its own, as when a metric is run again.
    """

    metric: Metric
    explanation: Explanation
    key: Key
    own: Context
    independent_draws: bool = False
    progress: bool | None = False

    def agreeing(self, task: Task) -> tuple[Tensor, Tensor, Tensor]:
        """Scores of the map and its inverse (N, K) along rankings that agree; whether these are drawn."""
        if self.metric.over_orders:
            orders = self.metric.tie_orders(task, self.explanation, self.own.key)
        else:
            orders = TieOrders.of(self.explanation)
        both = torch.full((2, len(task), orders.most), torch.nan, dtype=torch.float64, device=task.device)
        for which in range(orders.most):
            further = orders.beyond(which)
            rows = torch.tensor(further, device=task.device)
            part, some = (task, orders) if len(rows) == len(task) else (task[rows], orders.take(further))
            map_ = some.strict(which, self.own.key) if orders.most > 1 else self.explanation
            outcomes = paired(self.metric, part, map_, map_.inverted(), self.own)
            both[:, rows, which] = torch.stack([o.values.double() for o in outcomes])
        quality, inverse = sign_of(self.metric) * both
        return quality, inverse, orders.drawn

    def take(self, rows: Tensor) -> MapRankings:
        """Those of some of the samples."""
        return replace(self, explanation=self.explanation.take(rows))

    def scores(self, task: Task, first: int, count: int, paired: bool) -> Tensor:
        """The scores (N, count) of random rankings; if paired each is followed by its inverse."""

        def orders(at: int, many: int) -> Tensor:
            start, stop = first + at, first + at + many
            which = range(start // 2, (stop + 1) // 2) if paired else range(start, stop)
            drawn = random_orders(
                self.key,
                task.draw_ids,
                torch.tensor(which, device=task.device),
                task.space.n_features,
                task.space.valid,
            )
            if paired:
                both = torch.stack([drawn, reversed_orders(drawn, task.space.valid)], 2)
                drawn = both.flatten(1, 2)[:, start % 2 :][:, :many]
            return drawn

        path = path_of(self.metric, task)
        if path is not None and not self.independent_draws:
            return sign_of(self.metric) * scores_along(task, path, orders, count, self.own)
        columns = []
        for k in track(range(count), "rankings", self.progress):
            map_ = self.explanation.along(orders(k, 1)[:, 0])
            own = self.own.with_key(self.own.key / (k // 2) / (k % 2)) if self.independent_draws else self.own
            columns.append(self.metric.evaluate_with_ties(task, map_, own).values.double())
        return sign_of(self.metric) * torch.stack(columns, 1)


def places(sample: Tensor, quality: Tensor, tolerance: Tensor) -> Tensor:
    """Where scores (N, R) stand below each quality (N, K): 1, or 1/2 where they tie, else 0; NaN if it is."""
    difference = quality[:, None] - sample[..., None]
    tied = difference.abs() <= tolerance[:, None, None]
    place = torch.where(tied, 0.5, (difference > 0).double())
    return torch.where(quality.isnan()[:, None], torch.nan, place)


def tie_tolerance(task: Task, *scores: Tensor) -> Tensor:
    """How close scores of a sample tie (N,): a share of the largest that it has."""
    largest = [s.nan_to_num(0.0).abs().reshape(len(s), -1).amax(-1) for s in scores]
    return TIE_WITHIN.get(task.outputs.dtype, 1e-5) * torch.stack(largest).amax(0)


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
    half = float(special.ndtri((1 + level) / 2)) * more.std(-1) / more.shape[1] ** 0.5
    middle = more.mean(-1)
    return (middle - half).clamp(min=0.0), (middle + half).clamp(max=1.0)
