"""How one dictionary, loaded or trained, stands beside controls."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from scipy.stats import t
from torch import Tensor

from veridical.concepts.dictionary import Dictionary
from veridical.concepts.dictionary_training import Recipe, TopK
from veridical.core.allowed import Count
from veridical.core.key import Key
from veridical.core.settings import checked
from veridical.dictionaries.bench import Bench, Subject
from veridical.dictionaries.controls import RANDOM, Maker, controls
from veridical.dictionaries.measures import MEASURES
from veridical.dictionaries.trust import LEVEL, chosen_measures, read
from veridical.values.scores import Direction

if TYPE_CHECKING:
    import pandas as pd

MIN_SEEDS = 3
"""Trainings of every control that a verdict on one dictionary needs."""


def beyond(own: Tensor, controls: Tensor, level: float = LEVEL) -> tuple[float, float, float]:
    """How far one dictionary (parts,) lies above trainings of a control (seeds, parts), with its interval.

    As one case against a few (Crawford and Howell 1998): the spread over seeds counts `1 + 1 / S` times,
    since the question is whether it could be one more of them; that of the paired difference over parts of
    the samples joins it, with Welch's degrees of freedom. NaN with fewer than three seeds.
    """
    seeds, gaps = len(controls), own - controls.mean(0)
    there = ~gaps.isnan()
    gaps, parts = gaps[there], int(there.sum())
    if parts < 2:
        return math.nan, math.nan, math.nan
    mean = float(gaps.mean())
    if seeds < MIN_SEEDS:
        return mean, math.nan, math.nan
    noise = float(gaps.var()) / parts
    spread = float(controls[:, there].mean(1).var()) * (1 + 1 / seeds)
    free = (noise + spread) ** 2 / max(noise**2 / (parts - 1) + spread**2 / (seeds - 1), 1e-300)
    reach = float(t.ppf(1 - level / 2, max(free, 1.0))) * math.sqrt(noise + spread)
    return mean, mean - reach, mean + reach


@dataclass(frozen=True, eq=False, repr=False)
class Standing:
    """How one dictionary stands beside controls on a bench.

    `values[metric][entry]` (seeds, parts) are the readings; the entry "dictionary" is the one in question.
    """

    values: Mapping[str, Mapping[str, Tensor]]
    refused: Mapping[str, str]
    about: str

    def row(self, metric: str) -> dict[str, Any]:
        """Everything about one metric: a row of the table."""
        sign = 1.0 if MEASURES[metric].direction is Direction.HIGHER else -1.0
        each = {entry: sign * value.double() for entry, value in self.values[metric].items()}
        own = each.pop("dictionary")[0]
        seeds = min((len(value) for value in each.values()), default=0)
        mean, low, high = beyond(own, own.new_zeros(MIN_SEEDS, len(own)))
        gaps = {name: beyond(own, value) for name, value in each.items()}
        nearest = min(gaps, key=lambda name: gaps[name][int(seeds >= MIN_SEEDS)], default=None)
        least = 1e-5 * float(own.abs().nan_to_num(0).max())  # the last bits of an identity are no difference
        if math.isnan(mean):
            verdict = "undefined"
        elif not gaps or any(math.isnan(bound) for gap in gaps.values() for bound in gap):
            verdict = "unknown"
        elif all(gap[1] > least for gap in gaps.values()):
            verdict = "better"
        else:
            beating = min(gaps, key=lambda name: gaps[name][2])
            worse = gaps[beating][2] < -least
            verdict, nearest = ("worse", beating) if worse else ("not told apart", nearest)
        gap = gaps[nearest] if nearest else (math.nan,) * 3
        return {
            "metric": metric,
            "better": MEASURES[metric].direction.value,
            "value": sign * mean,
            "low": min(sign * low, sign * high),
            "high": max(sign * low, sign * high),
            "nearest control": nearest,
            "its value": sign * float(each[nearest].nanmean()) if nearest else math.nan,
            "ahead by": gap[0],
            "from": gap[1],
            "to": gap[2],
            "verdict": verdict,
        }

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row per metric."""
        import pandas as pd

        return pd.DataFrame([self.row(metric) for metric in self.values])

    def __repr__(self) -> str:
        said = {
            "better": "Better than every control",
            "worse": "Worse than a control",
            "not told apart": "Not told apart from a control",
            "undefined": "Without a value on these samples",
            "unknown": f"Unknown (no controls, or fewer than {MIN_SEEDS} trainings of each)",
        }
        found = self.table.groupby("verdict")["metric"].agg(", ".join)
        lines = [f"{words}: {found[verdict]}." for verdict, words in said.items() if verdict in found]
        return "\n".join([self.about, *lines])


@checked
def judge_one(
    dictionary: Dictionary,
    bench: Bench,
    recipe: Recipe | None = None,
    *,
    seeds: Count = 3,
    measures: Sequence[str] | None = None,
    entries: Mapping[str, Maker] | None = None,
    seed: int = 0,
    progress: bool | None = None,
) -> Standing:
    """How one dictionary, loaded or trained, stands beside controls that know nothing of the features.

    Parameters
    ----------
    dictionary
        The dictionary in question.
    bench
        What it is judged on; its layer must be the one that the dictionary was trained on.
    recipe
        How the controls are trained (default: TopK with as many atoms, and as many of them active, as the
        dictionary has). For a fair comparison give as many steps as it had.
    seeds
        Trainings of every control; with fewer than three every verdict is "unknown".
    measures
        Names of metrics; all by default.
    entries
        What makes each control; by default those random ones of `controls(bench)`. None at all leaves
        every verdict "unknown".
    seed
        Keys every draw.
    progress
        Whether a bar is shown; None shows it on terminals.

    Returns
    -------
    Standing
        Every metric with its 95% interval over samples, and how far the dictionary lies ahead of the nearest
        control (where "worse" the one surely ahead), with an interval over samples and trainings of the
        control. "better" needs all controls.

    Raises
    ------
    InputError
        The dictionary belongs to another layer.

    Examples
    --------
    >>> from veridical.dictionaries import Bench, Superposition, TopK, judge_one, train
    >>> bench = Bench.planted(Superposition(features=24, dimensions=12, active=2.0, groups=3), 64, 512)
    >>> own = train(bench.train, TopK(24, steps=40, batch=32, active=2)).dictionary
    >>> list(judge_one(own, bench, measures=["explained variance"], entries={}).table["verdict"])
    ['unknown']
    """
    active = (Subject(dictionary, bench).codes != 0).sum(-1).double().mean()
    if recipe is None:
        width = len(dictionary.decoder)
        recipe = TopK(width, active=min(width, max(1, round(float(active)))))
    if entries is None:
        entries = {name: maker for name, maker in controls(bench).items() if name in RANDOM}
    keys = [Key(seed) / "controls" / number for number in range(seeds)]

    def made(maker: Maker | None) -> list[Dictionary]:
        return [dictionary] if maker is None else [maker(bench, recipe, key) for key in keys]

    every: dict[str, Maker | None] = {"dictionary": None, **entries}
    makers = {name: partial(made, maker) for name, maker in every.items()}
    values, _, refused = read(makers, bench, chosen_measures(measures), progress)
    about = (
        f"A dictionary of {len(dictionary.decoder)} atoms, {float(active):.3g} active, on layer "
        f"'{bench.layer}', beside {len(entries)} controls trained {seeds} times for {recipe.steps} steps"
    )
    return Standing(values, refused, about)
