"""Which dictionary metric can be trusted: every metric on a family of dictionaries, and the table."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from veridical.concepts.dictionary import Dictionary
from veridical.concepts.dictionary_training import Recipe, TopK
from veridical.core.allowed import Count
from veridical.core.files import write_file
from veridical.core.key import Key, integers
from veridical.core.progress import track
from veridical.core.settings import checked
from veridical.dictionaries.bench import Bench, Subject
from veridical.dictionaries.controls import RANDOM, Maker, family
from veridical.dictionaries.measures import MEASURES, Measure
from veridical.dictionaries.planted import Superposition
from veridical.errors import InputError, NotApplicableError, unknown_name
from veridical.functional import spearman
from veridical.plots import COLOURS, axes
from veridical.values.scores import Direction
from veridical.values.tables import write_csv

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


def separation(better: Tensor, worse: Tensor) -> float:
    """An exact p-value of the one being no better than the other.

    Values are oriented: more is better. One-sided permutation test of the difference in means over all ways
    to name the readings: with S seeds each, p is at least `1 / C(2S, S)`.
    """
    both = torch.cat([better, worse]).double()
    if bool(both.isnan().any()):
        return math.nan
    size, total = len(better), both.sum()
    names = torch.tensor(list(combinations(range(len(both)), size)))
    first = both[names].sum(-1)
    gaps = first / size - (total - first) / len(worse)
    seen = gaps[0]
    slack = 1e-12 * both.abs().max().clamp(min=1e-300)
    return float((gaps >= seen - slack).double().mean())


def smallest_difference(readings: Tensor, power: float = 0.8, level: float = 0.05) -> float:
    """The difference between two dictionaries, S seeds each, that a test at `level` finds with `power`.

    `(t_(1 - level/2) + t_power) sqrt(2 v / S)` with 2S - 2 degrees of freedom, two-sided; v, for readings
    (S, parts), is the variance over seeds of the mean over parts, but at least what the spread over parts
    makes of that mean.
    """
    from scipy.stats import t

    seeds, parts = readings.shape
    if seeds < 2:
        return math.nan
    between = readings.mean(1).var()
    within = readings.var(1).mean() / parts if parts > 1 else torch.zeros(())
    spread = math.sqrt(2 * float(torch.maximum(between, within)) / seeds)
    free = 2 * seeds - 2
    return float(t.ppf(1 - level / 2, free) + t.ppf(power, free)) * spread


def agreement(
    values: Tensor, truth: Tensor, resamples: int = 999, seed: int = 0
) -> tuple[float, float, float]:
    """Rank correlation of a metric with truth over dictionaries, with a 95% interval over resampled ones."""
    there = ~(values.isnan() | truth.isnan())
    values, truth = values[there].double(), truth[there].double()
    if len(values) < 4:
        return math.nan, math.nan, math.nan
    drawn = integers(Key(seed) / "agreement", torch.arange(resamples), 0, len(values), len(values))
    found = spearman(values[drawn], truth[drawn])
    low, high = torch.nanquantile(found, torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return float(spearman(values[None], truth[None])[0]), low, high


def concordance(values: dict[str, Tensor], chains: Sequence[Sequence[str]]) -> float:
    """The share of pairs whose order is known that oriented readings (seeds,) have right, seed by seed."""
    found = [
        (values[one] > values[other]).double() + 0.5 * (values[one] == values[other]).double()
        for chain in chains
        for one, other in combinations([name for name in chain if name in values], 2)
    ]
    return float(torch.cat(found).mean()) if found else math.nan


CHAINS = (
    ("true atoms", "trained", "25% random", "50% random", "75% random"),
    ("trained", "1/4 steps", "1/16 steps"),
)
"""Entries whose order is known, the best first."""
LEVEL, FIRM = 0.05, 0.5
"""A metric separates at this p-value, and follows truth from this rank correlation on."""


@dataclass(frozen=True, eq=False, repr=False)
class Trust:
    """Readings of dictionary metrics, and the verdict on each metric.

    `values[metric][entry]` (seeds, parts) are the readings, `truth[measure][entry]` (seeds,) the truth where
    it is known, `refused` names metrics that do not apply here, with why.
    """

    values: Mapping[str, Mapping[str, Tensor]]
    truth: Mapping[str, Mapping[str, Tensor]]
    directions: Mapping[str, Direction]
    entries: tuple[str, ...]
    refused: Mapping[str, str]
    about: Mapping[str, Any]

    def oriented(self, metric: str) -> dict[str, Tensor]:
        """Readings (seeds, parts) of every entry, turned so that more is better, on a grid of 1e-5.

        The last bits of an identity (effects behind a linear layer are all 1) are no order of dictionaries.
        """
        sign = 1.0 if self.directions[metric] is Direction.HIGHER else -1.0
        held = {entry: self.values[metric][entry].double() for entry in self.entries}
        largest = max((float(v.abs().nan_to_num(0).max()) for v in held.values()), default=0.0)
        step = 1e-5 * largest or 1.0
        return {entry: sign * (value / step).round() * step for entry, value in held.items()}

    @property
    def controls(self) -> tuple[str, ...]:
        """Random controls among the entries."""
        return tuple(name for name in self.entries if name in RANDOM)

    def row(self, metric: str) -> dict[str, Any]:
        """Everything about one metric: a row of the table."""
        each = self.oriented(metric)
        mean = {entry: value.nanmean(1) for entry, value in each.items()}
        own, sign = mean["trained"], 1.0 if self.directions[metric] is Direction.HIGHER else -1.0
        tests = {name: separation(own, mean[name]) for name in self.controls}
        hardest = max(self.controls, key=lambda name: float(mean[name].mean()), default=None)
        smallest = smallest_difference(each["trained"])
        resolvable = smallest > 1e-9 * float(own.abs().max())
        gap = float(own.mean() - mean[hardest].mean()) if hardest else math.nan
        rank = self.follows(metric)
        out: dict[str, Any] = {
            "metric": metric,
            "better": "higher" if sign > 0 else "lower",
            "trained": sign * float(own.mean()),
            "best random": hardest,
            "its value": sign * float(mean[hardest].mean()) if hardest else math.nan,
            "p": _largest(list(tests.values())),
            "least p": _largest([1 / math.comb(len(own) + len(mean[c]), len(own)) for c in self.controls]),
            "not separated from": ", ".join(name for name, p in tests.items() if not p <= LEVEL),
            "smallest difference": smallest,
            "steps": gap / smallest if resolvable else math.nan,
            "order": concordance(mean, CHAINS),
            "rank with truth": rank[0],
            "low": rank[1],
            "high": rank[2],
        }
        return out | {"verdict": verdict(out, bool(self.truth))}

    def follows(self, metric: str) -> tuple[float, float, float]:
        """Rank correlation with MCC above chance over the entries, and its interval."""
        if not self.truth:
            return math.nan, math.nan, math.nan
        mean = self.oriented(metric)
        return agreement(
            torch.stack([mean[entry].nanmean() for entry in self.entries]),
            torch.stack([self.truth["mcc"][entry].mean() for entry in self.entries]),
        )

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row per metric, those that can be trusted first."""
        import pandas as pd

        rows = [self.row(metric) for metric in self.values]
        order = {"use": 0, "separates only": 1, "follows truth only": 2, "not decided": 3, "do not use": 4}
        rows.sort(key=lambda row: (order[row["verdict"]], -np.nan_to_num(row["rank with truth"], nan=-2)))
        return pd.DataFrame(rows)

    def to_frame(self) -> pd.DataFrame:
        """Every reading: one row per metric, entry, seed and part."""
        import pandas as pd

        rows = [
            {"metric": metric, "entry": entry, "seed": seed, "part": part, "value": float(value)}
            for metric, each in self.values.items()
            for entry in self.entries
            for seed, parts in enumerate(each[entry])
            for part, value in enumerate(parts)
        ]
        return pd.DataFrame(rows)

    def means(self) -> pd.DataFrame:
        """Every metric, and truth where it is known, on every entry: means over seeds and parts."""
        import pandas as pd

        known = {f"truth: {n}": {e: float(v[e].mean()) for e in self.entries} for n, v in self.truth.items()}
        read = {n: {e: float(v[e].nanmean()) for e in self.entries} for n, v in self.values.items()}
        return pd.DataFrame({**known, **read}).loc[list(self.entries)]

    def save(self, folder: str | Path) -> Path:
        """Write the table, the means, all readings (.csv) and the settings (.json)."""
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        means = self.means().reset_index(names="entry")
        for name, frame in (("trust", self.table), ("means", means), ("readings", self.to_frame())):
            write_csv(frame, place / f"{name}.csv")
        about = json.dumps({**self.about, "refused": dict(self.refused)}, indent=1)
        write_file(place / "about.json", about, private=False)
        return place

    def __repr__(self) -> str:
        good = [row["metric"] for _, row in self.table.iterrows() if row["verdict"] == "use"]
        return f"Trust in {len(self.values)} dictionary metrics: use {', '.join(good) or 'none'}"


def verdict(row: Mapping[str, Any], truth: bool) -> str:
    """What to do with a metric: it must tell trained from every random control, and follow truth if known.

    The test over seeds has these samples in common, so the gap must exceed what other samples may change too.
    Whether it separates is not decided where no control was read, or where so few seeds were that no outcome
    could reach the level.
    """
    follows = row["rank with truth"] >= FIRM and row["low"] > 0
    if not row["least p"] <= LEVEL:
        return "not decided"
    separates = row["p"] <= LEVEL and not row["steps"] < 1
    if separates:
        return "use" if truth and follows else "separates only"
    return "follows truth only" if truth and follows else "do not use"


Readings = dict[str, dict[str, Tensor]]
"""Of every metric, of every entry: one value per seed and part (seeds, parts)."""


def chosen_measures(measures: Sequence[str] | None) -> list[Measure]:
    """Metrics by their names; all of them for None."""
    for named in measures or ():
        if named not in MEASURES:
            raise unknown_name("dictionary metric", named, MEASURES)
    return [MEASURES[named] for named in (MEASURES if measures is None else measures)]


def read(
    makers: Mapping[str, Callable[[], Sequence[Dictionary]]],
    bench: Bench,
    measures: Sequence[Measure],
    progress: bool | None,
) -> tuple[Readings, Readings, dict[str, str]]:
    """Every metric on every dictionary that is made: readings, what is known to be true, and refusals."""
    values: dict[str, dict[str, list[Tensor]]] = {}
    truth: dict[str, dict[str, list[Tensor]]] = {}
    refused: dict[str, str] = {}
    for name, make in track(list(makers.items()), "judging dictionaries", progress):
        made = make()
        for number, one in enumerate(made):
            subject = Subject(one, bench, made[number - 1] if len(made) > 1 else None)
            for measure in (m for m in measures if m.name not in refused):
                try:
                    read = measure.evaluate(subject).cpu()
                except NotApplicableError as error:
                    refused[measure.name] = str(error)
                else:
                    values.setdefault(measure.name, {}).setdefault(name, []).append(read)
            for known, score in subject.truth.items():
                held = torch.tensor(score, dtype=torch.float64)
                truth.setdefault(known, {}).setdefault(name, []).append(held)
    found, known_too = (
        {metric: {entry: torch.stack(each) for entry, each in own.items()} for metric, own in held.items()}
        for held in (values, truth)
    )
    return {m.name: found[m.name] for m in measures if m.name not in refused}, known_too, refused


def _largest(values: list[float]) -> float:
    """The largest, NaN where one is: a control that was not judged is not beaten."""
    return math.nan if not values or any(math.isnan(v) for v in values) else max(values)


@checked
def judge(
    bench: Bench | Superposition | None = None,
    recipe: Recipe | None = None,
    *,
    seeds: Count = 4,
    measures: Sequence[str] | None = None,
    entries: Mapping[str, Maker] | None = None,
    seed: int = 0,
    progress: bool | None = None,
) -> Trust:
    """Which dictionary metric can be trusted: on planted features, or on a bench of your own model.

    Every entry (the trained dictionary, others whose order is known, controls trained for as many steps) is
    made `seeds` times, and every metric read on each part of the samples.

    Parameters
    ----------
    bench
        A bench, planted features, or None for the default ones.
    recipe
        How dictionaries are trained.
    seeds
        Trainings of every entry, at least 2; three are needed for a verdict. A "trained" that is the
        same every time (loaded) counts once: it then takes 19 trainings of the controls.
    measures
        Names of metrics; all by default.
    entries
        What makes each dictionary; by default `family(recipe, bench)`. One is called "trained".
    seed
        Keys every draw.
    progress
        Whether a bar is shown; None shows it on terminals.

    Returns
    -------
    Trust
        The readings, and the table with a verdict on every metric.

    Examples
    --------
    >>> from veridical.dictionaries import Superposition, TopK, judge
    >>> planted = Superposition(features=24, dimensions=12, active=2.0, groups=3)
    >>> recipe = TopK(24, steps=20, batch=32, active=2)
    >>> found = judge(planted, recipe, seeds=2, measures=["explained variance"])
    >>> list(found.table["metric"])
    ['explained variance']
    """
    if not isinstance(bench, Bench):
        bench = Bench.planted(bench or Superposition())
    if seeds < 2:
        raise InputError(f"seeds is at least 2, for a spread over them; got {seeds}")
    if recipe is None:
        planted = bench.truth
        recipe = TopK(512) if planted is None else TopK(planted.features, 1500, 256, 5e-3, active=4)
    chosen = chosen_measures(measures)
    makers = dict(family(recipe, bench) if entries is None else entries)
    if "trained" not in makers:
        raise InputError(f"one entry is 'trained', the dictionary in question; got {', '.join(makers)}")
    keys = [Key(seed) / "dictionaries" / number for number in range(seeds)]

    def made(name: str, maker: Maker) -> list[Dictionary]:
        each = [maker(bench, recipe, key) for key in keys]
        copies = name == "trained" and all(torch.equal(one.encoder, each[0].encoder) for one in each)
        return each[:1] if copies else each  # a dictionary that was loaded: copies of it are no seeds

    values, truth, refused = read(
        {name: partial(made, name, maker) for name, maker in makers.items()}, bench, chosen, progress
    )
    about: dict[str, Any] = {"recipe": recipe.to_json(), "seeds": seeds, "layer": bench.layer}
    if bench.truth is not None:
        about["planted"] = bench.truth.to_json()
    directions = {name: MEASURES[name].direction for name in values}
    return Trust(values, truth, directions, tuple(makers), refused, about)


_SHADES = {"use": COLOURS[2], "separates only": COLOURS[4], "follows truth only": COLOURS[5]}


def plot_trust(found: Trust, ax: Axes | None = None) -> Axes:
    """How far trained and the best random control stand apart, in smallest detectable differences.

    Right of the line a metric tells them apart at this size; colours are verdicts.
    """
    table = found.table.iloc[::-1]
    ax = axes(ax, 6.0, 0.3 * len(table) + 1.2)
    steps = table["steps"].clip(-5, 20).fillna(0)
    colours = [_SHADES.get(verdict, COLOURS[1]) for verdict in table["verdict"]]
    ax.barh(table["metric"], steps, color=colours)
    ax.axvline(1, color="black", lw=0.8, ls=":")
    ax.axvline(0, color="black", lw=0.8)
    ax.set(xlabel="(trained - best random control) / smallest detectable difference, cut at -5 and 20")
    seen = dict.fromkeys(found.table["verdict"])
    for name in seen:
        ax.barh([], [], color=_SHADES.get(name, COLOURS[1]), label=name)
    ax.legend(frameon=False, fontsize="small", loc="lower right")
    return ax
