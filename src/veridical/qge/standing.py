"""Standing: the place of an explanation among all rankings of its values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from veridical.api import as_explanation, as_metric
from veridical.core.allowed import Between, Count
from veridical.core.key import Key
from veridical.core.settings import checked
from veridical.errors import InputError
from veridical.explainers.base import Explainer, as_explainer
from veridical.explainers.transforms import Inverted
from veridical.metrics.base import CONSTANT, AnyMetric, ExplainerMetric, Metric
from veridical.models.context import Context
from veridical.models.cost import Cost
from veridical.qge.gap import IDENTICALLY_ZERO, Reshuffled, paired
from veridical.qge.paths import path_of, random_orders, reversed_orders, scores_along
from veridical.qge.subsets import LARGEST_COUNT, best_and_worst, sampled_scores, share_below, steps_of
from veridical.values.explanation import Explanation
from veridical.values.scores import Direction
from veridical.values.task import Task
from veridical.values.ties import TieOrders

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

LARGEST_BY_DEFAULT = 12
LOOKED_UP = 1000
"""Rankings that show the distribution where the percentile is exact: they cost no evaluation."""
TIE_WITHIN = {torch.float64: 1e-9, torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 1e-2}
"""How close two scores are, as a share of the largest of their sample, to tie in each precision."""


@dataclass(frozen=True, eq=False, repr=False)
class Standing:
    """For each sample: the share of all rankings that score lower (ties half), with its interval.

    `quality` and `sample` are negated where lower is better, so that higher always means better. `sample`
    (N, draws; at least 1000 where exact) holds scores of random rankings. `variance_ratio` is the variance
    of the estimate with antithetic pairs over that of as many plain draws: below 1, pairing helps; NaN where
    all rankings drawn stand on one side, so that there is none. `method` says how each percentile was found:
    "exact", "antithetic" or "plain". Where it is exact, `best` and `worst` are the quality of the best and
    the worst ranking there is. A map with ties has the mean place of the rankings that agree with it.
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
    best: Tensor = field(default_factory=lambda: torch.empty(0))
    """The quality that the best of all rankings reaches (N,), NaN where that is not known."""
    worst: Tensor = field(default_factory=lambda: torch.empty(0))
    """The quality of the worst of all rankings (N,), NaN where that is not known."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def reached(self) -> Tensor:
        """How far between the worst and the best reachable ranking it lies (N,): 1 is the best there is."""
        return (self.quality - self.worst) / (self.best - self.worst)

    @property
    def variance_removed(self) -> Tensor:
        """The share of the variance (N,) that antithetic pairs take away; negative where they add to it."""
        return 1 - self.variance_ratio

    def to_frame(self) -> pd.DataFrame:
        """One row per sample."""
        import pandas as pd

        numbers = (
            "quality",
            "gap",
            "percentile",
            "low",
            "high",
            "variance_ratio",
            "best",
            "worst",
            "reached",
        )
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
        removed = 100 * float(self.variance_removed.nanmean()) if len(self) else float("nan")
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
    at_most: Count | None = None,
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
    metric : Metric, ExplainerMetric or str
        The metric that scores rankings, or its name. One of methods (robustness, randomisation) compares an
        explainer with random methods that shuffle each of its maps.
    explanation : Explanation, Tensor, Explainer or str
        The maps, or who makes them; an explainer for a metric of methods.
    draws : int
        Random rankings per sample, an even number of at least 4.
    at_most : int, optional
        Draw on, twice as many at each interim analysis, for samples whose interval still holds 50%; the level
        is shared out among the analyses.
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
    _check(draws, at_most)
    # what a metric asks whatever the map, such as random subsets, is asked once for all rankings
    own = Context(Key(seed) / scorer.name)
    draw: MapDraws | MethodDraws
    if isinstance(scorer, Metric):
        explained = as_explanation(explanation, task, seed).matching(task)
        missing, constant, who = explained.missing, ~explained.spread, explained.explainer
        # a map that is missing has no place; zeros stand in for it so that the others can be asked
        explained = explained.with_values(explained.values.nan_to_num()) if bool(missing.any()) else explained
        draw = MapDraws(scorer, explained, Key(seed) / "standing", own)
    else:
        method = as_explainer(explanation)
        method.check(task)
        missing = constant = torch.zeros(len(task), dtype=torch.bool, device=task.device)
        draw, who = MethodDraws(scorer, method, own), method.name  # type: ignore[arg-type]
    before = task.predictor.meter.cost
    each, inverses, counts = draw.own_scores(task)
    quality, inverse = (
        torch.where(x.isnan().all(-1), torch.nan, x.nansum(-1) / counts) for x in (each, inverses)
    )
    steps = _all_steps(task, scorer, own, exact)
    if steps is not None:
        columns, sample, how = _exactly(task, steps, each, draw, max(draws, LOOKED_UP))
    else:
        columns, sample, how = _sampled(task, each, draw, draws, at_most or draws, level)
    unknown = missing | quality.isnan()
    # a map that ranks nothing stands for every ranking there is, and half of these are below the others
    columns |= {name: columns[name].masked_fill(constant, 0.5) for name in ("percentile", "low", "high")}
    flags = {
        "no explanation": missing,
        "the metric has no value": quality.isnan() & ~missing,
        CONSTANT: constant & ~missing,
    }
    if scorer.permutation_invariant:
        unknown, flags[IDENTICALLY_ZERO] = torch.ones_like(unknown), torch.ones_like(unknown)
    return Standing(
        scorer.name,
        who,
        task.ids,
        quality.masked_fill(unknown, torch.nan),
        (quality - inverse).masked_fill(unknown, torch.nan),
        method=how,
        sample=sample,
        level=level,
        cost=task.predictor.meter.cost - before,
        flags={why: mask for why, mask in flags.items() if bool(mask.any())},
        **{name: column.masked_fill(unknown, torch.nan) for name, column in columns.items()},
    )


def _check(draws: int, at_most: int | None) -> None:
    for what, count in (("draws", draws), ("at_most", draws if at_most is None else at_most)):
        if count < 4 or count % 2:
            raise InputError(f"{what} come in pairs: an even number of at least 4, got {count!r}")
    if at_most is not None and at_most < draws:
        raise InputError(f"at_most is at least the first {draws} draws, got {at_most}")


_Columns = dict[str, Tensor]
"""What is found per sample: percentile, low, high, variance_ratio, best, worst."""


def _all_steps(
    task: Task, scorer: AnyMetric, context: Context, exact: bool | None
) -> list[tuple[Tensor, Tensor]] | None:
    """For samples of each number of features: which they are, and what each of their sets adds to a score."""
    counts = task.space.counts(len(task))
    most = int(counts.max())
    fits = isinstance(scorer, Metric) and most <= (LARGEST_COUNT if exact else LARGEST_BY_DEFAULT)
    found = []
    for size in counts.unique().tolist() if fits and exact is not False else ():
        rows = (counts == size).nonzero()[:, 0]
        steps = steps_of(scorer, task if len(rows) == len(task) else task[rows], size, context)  # type: ignore[arg-type]
        if steps is None:
            break
        found.append((rows, steps))
    if found:
        return found
    if exact:
        reason = (
            f"{most} features" if most > LARGEST_COUNT else "a metric that does not walk one path of sets"
        )
        raise InputError(f"the exact standing of {reason} is out of reach; use exact=False")
    return None


def _exactly(
    task: Task, groups: list[tuple[Tensor, Tensor]], each: Tensor, draw: MapDraws | MethodDraws, draws: int
) -> tuple[_Columns, Tensor, tuple[str, ...]]:
    """Count all rankings through their subsets; columns, scores of random rankings, and how it was found."""
    assert isinstance(draw, MapDraws)
    sample = each.new_empty(len(task), draws)
    percentile, best, worst = each.new_empty(3, len(task))
    for rows, steps in groups:
        size, which = steps.shape[-1].bit_length() - 1, torch.arange(draws // 2, device=task.device)
        orders = random_orders(draw.key, task.draw_ids[rows], which, size)
        both = torch.cat([orders, orders.flip(-1)], 1)
        best[rows], worst[rows] = best_and_worst(steps)
        for i, row in enumerate(rows.tolist()):
            sample[row] = sampled_scores(steps[i], both[i])
    near = tie_tolerance(task, each, sample, best[:, None], worst[:, None])
    for rows, steps in groups:
        for i, row in enumerate(rows.tolist()):
            scores = [score for score in each[row].tolist() if score == score]
            found = [share_below(steps[i].cpu(), score, float(near[row])) for score in scores]
            percentile[row] = sum(found) / len(found) if found else torch.nan
    ratio = pairing(mean_places(torch.stack(sample.chunk(2, 1), -1), each, near))
    columns = {"percentile": percentile, "low": percentile, "high": percentile, "variance_ratio": ratio}
    return columns | {"best": best, "worst": worst}, sample, ("exact",) * len(task)


def _sampled(
    task: Task, each: Tensor, draw: MapDraws | MethodDraws, draws: int, most: int, level: float
) -> tuple[_Columns, Tensor, tuple[str, ...]]:
    """Draw until the interval of a sample leaves 50%, twice as many at each interim analysis, or `most`."""
    analyses = [draws]
    while analyses[-1] < most:
        analyses.append(min(most, 2 * analyses[-1]))
    level = 1 - (1 - level) / len(analyses)
    sample = each.new_full((len(task), analyses[-1]), torch.nan)
    percentile, low, high, ratio = each.new_full((4, len(task)), torch.nan)
    worse = torch.zeros(len(task), dtype=torch.bool, device=task.device)
    rows, done = torch.arange(len(task), device=task.device), 0
    for upto in analyses:
        whole = len(rows) == len(task)
        part, some = (task, draw) if whole else (task[rows], draw.take(rows))
        pairs = some.pairs(part, done // 2, (upto - done) // 2)
        sample[rows, done:upto] = pairs.flatten(1)
        scores = sample[rows, :upto].unflatten(1, (-1, 2))
        place = mean_places(scores, each[rows], tie_tolerance(part, each[rows], scores))
        units, ratio[rows] = place.mean(-1), pairing(place)
        percentile[rows] = units.mean(-1)
        low[rows], high[rows] = interval(units, level)
        worse[rows] = ratio[rows] > 1
        open_ = (low[rows] <= 0.5) & (high[rows] >= 0.5)
        rows, done = rows[open_], upto
        if not len(rows):
            break
    plain = worse.nonzero()[:, 0]
    if len(plain):
        part, some = (task[plain], draw.take(plain))
        asked = (~sample[plain].isnan()).sum(-1)
        for count in asked.unique().tolist():
            own = (asked == count).nonzero()[:, 0]
            at = plain[own]
            fresh = some.take(own).plain(part[own], analyses[-1] // 2, count - count // 2)
            single = torch.cat([sample[at, :count:2], fresh], 1)
            sample[at, :count] = single
            units = mean_places(single, each[at], tie_tolerance(part[own], each[at], single))
            percentile[at] = units.mean(-1)
            low[at], high[at] = interval(units, level)
    method = tuple("plain" if is_plain else "antithetic" for is_plain in worse.tolist())
    unknown = torch.full_like(percentile, torch.nan)
    columns = {"percentile": percentile, "low": low, "high": high, "variance_ratio": ratio}
    return columns | {"best": unknown, "worst": unknown}, sample, method


def sign_of(metric: Metric | ExplainerMetric) -> float:
    """What makes a metric's scores higher-is-better."""
    return 1.0 if metric.better is Direction.HIGHER else -1.0


@dataclass(frozen=True, eq=False)
class MapDraws:
    """Scores of random rankings that carry an explanation's values; the rankings follow the sample alone."""

    metric: Metric
    explanation: Explanation
    key: Key
    own: Context

    def own_scores(self, task: Task) -> tuple[Tensor, Tensor, Tensor]:
        """Scores of the map and its inverse (N, K) along rankings that agree with it; how many count."""
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
        return quality, inverse, orders.counts

    def take(self, rows: Tensor) -> MapDraws:
        """Those of some of the samples."""
        return MapDraws(self.metric, self.explanation.take(rows), self.key, self.own)

    def _orders(self, task: Task, first: int, count: int) -> Tensor:
        which = torch.arange(first, first + count, device=task.device)
        return random_orders(self.key, task.draw_ids, which, task.space.n_features, task.space.valid)

    def pairs(self, task: Task, start: int, count: int) -> Tensor:
        """(N, count, 2): the scores of rankings and of their inverses."""

        # a ranking and then its inverse, drawn as they are evaluated
        def both(first: int, rankings: int) -> Tensor:
            which = range(first // 2, (first + rankings + 1) // 2)
            orders = self._orders(task, start + which.start, len(which))
            turned = torch.stack([orders, reversed_orders(orders, task.space.valid)], 2).flatten(1, 2)
            return turned[:, first % 2 :][:, :rankings]

        return self._scores(task, both, 2 * count).unflatten(1, (count, 2))

    def plain(self, task: Task, first: int, count: int) -> Tensor:
        """(N, count): the scores of further rankings."""
        return self._scores(task, lambda at, n: self._orders(task, first + at, n), count)

    def _scores(self, task: Task, orders: Callable[[int, int], Tensor], count: int) -> Tensor:
        """The scores (N, count) of the map's values along rankings given by `orders(first, count)`."""
        path = path_of(self.metric, task)
        if path is not None:
            return sign_of(self.metric) * scores_along(task, path, orders, count, self.own)
        maps = (self.explanation.along(orders(k, 1)[:, 0]) for k in range(count))
        columns = [self.metric.evaluate_with_ties(task, map_, self.own).values.double() for map_ in maps]
        return sign_of(self.metric) * torch.stack(columns, 1)


@dataclass(frozen=True, eq=False)
class MethodDraws:
    """The same of a metric that judges methods: random methods shuffle each map of the one judged."""

    metric: ExplainerMetric
    explainer: Explainer
    own: Context

    def _score(self, task: Task, explainer: Explainer) -> Tensor:
        return sign_of(self.metric) * self.metric.evaluate(task, explainer, self.own).values.double()

    def own_scores(self, task: Task) -> tuple[Tensor, Tensor, Tensor]:
        quality, inverse = (self._score(task, e)[:, None] for e in (self.explainer, Inverted(self.explainer)))
        return quality, inverse, torch.ones_like(task.ids)

    def take(self, rows: Tensor) -> MethodDraws:
        """Samples are asked about by the task alone."""
        return self

    def pairs(self, task: Task, start: int, count: int) -> Tensor:
        """(N, count, 2): the scores of random methods and of their inverses."""
        columns = []
        for k in range(start, start + count):
            random = Reshuffled(self.explainer, k)
            columns.append(torch.stack([self._score(task, e) for e in (random, Inverted(random))], -1))
        return torch.stack(columns, 1)

    def plain(self, task: Task, first: int, count: int) -> Tensor:
        """(N, count): the scores of further random methods."""
        randoms = [Reshuffled(self.explainer, k) for k in range(first, first + count)]
        return torch.stack([self._score(task, random) for random in randoms], 1)


def places(sample: Tensor, quality: Tensor, tolerance: Tensor | float) -> Tensor:
    """1 where a score lies below the quality, 1/2 where it ties, 0 above."""
    difference = quality.reshape(-1, *[1] * (sample.dim() - 1)) - sample
    tied = difference.abs() <= tolerance
    return torch.where(tied, 0.5, (difference > 0).double())


def mean_places(sample: Tensor, quality: Tensor, tolerance: Tensor) -> Tensor:
    """The mean place over the rankings (N, K) that agree with a map, those that are NaN left out."""
    near = tolerance.reshape(-1, *[1] * (sample.dim() - 1))
    each = torch.stack([places(sample, q, near) for q in quality.unbind(-1)], -1)
    there = ~quality.isnan().reshape(len(quality), *[1] * (sample.dim() - 1), -1)
    return torch.where(there, each, 0.0).sum(-1) / there.sum(-1).clamp(min=1)


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
    z = float(torch.special.ndtri(torch.tensor((1 + level) / 2, dtype=torch.float64)))
    half = z * more.std(-1) / more.shape[1] ** 0.5
    middle = more.mean(-1)
    return (middle - half).clamp(min=0.0), (middle + half).clamp(max=1.0)
