"""The ranking study: does a metric put a good explainer and its degraded versions into the right order?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from veridical.core.allowed import Between, Count, PartOf, Share
from veridical.core.key import Key
from veridical.core.progress import track
from veridical.core.settings import checked
from veridical.errors import InputError
from veridical.explainers.transforms import degrade
from veridical.fidelity.artefact import Finetuned
from veridical.fidelity.correctness import Reference, refuse_chance, studied_maps
from veridical.fidelity.falls import area_over_sizes, evaluated_sizes, measure
from veridical.fidelity.finetuning import finetune
from veridical.fidelity.metrics import LEVELS, FFid, Fid, Fidelity, RFid, Variant
from veridical.fidelity.removal import SIGNS
from veridical.functional import bootstrap_interval, has_spread, spearman
from veridical.values.explanation import Explanation
from veridical.values.task import Task

if TYPE_CHECKING:
    import pandas as pd

ABLATION = "Fid + fine-tuning"
RATIOS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
PAIRS: dict[str, int] = {"MoRF vs GT": -1, "LeRF vs GT": 1, "MoRF vs LeRF": -1}
"""What is correlated, and the sign it should have."""
GRID = 1e-9
"""Means nearer than this tie: they are sums of the same numbers in another order."""


@dataclass(frozen=True, eq=False)
class Agreement:
    """Correlations of one metric: (mean, deviation over repeats) per pair; NaN where there is none.

    `micro` is the mean over the sizes where it is defined, `undefined` how many (repeat, size) had none,
    `by_size` (repeats, sizes) the correlations themselves at `sizes`.
    """

    macro: Mapping[str, tuple[float, float]]
    micro: Mapping[str, tuple[float, float]]
    undefined: Mapping[str, int]
    by_size: Mapping[str, Tensor]
    sizes: tuple[float, ...]


def order_correlation(scores: Tensor, other: Tensor) -> Tensor:
    """Spearman's correlation along the last dimension; NaN where either is constant."""
    a, b = (torch.round(values / GRID) * GRID for values in (scores, other.expand_as(scores)))
    defined = has_spread(a) & has_spread(b)
    return spearman(a, b).masked_fill(~defined, torch.nan)


def agreement(plus: Tensor, minus: Tensor, ratios: Sequence[float], levels: Sequence[float]) -> Agreement:
    """Correlations from mean falls (repeats, ratios, sizes) of both signs."""
    known = torch.tensor(tuple(ratios), dtype=torch.float64, device=plus.device)
    areas = [area_over_sizes(values, levels) for values in (plus, minus)]
    at_sizes = [values.transpose(1, 2) for values in (plus, minus)]  # repeats, sizes, ratios
    macro = _pairs(areas[0], areas[1], known)
    micro = _pairs(at_sizes[0], at_sizes[1], known)
    return Agreement(
        {pair: _mean_and_spread(values) for pair, values in macro.items()},
        {pair: _mean_and_spread(values.nanmean(-1)) for pair, values in micro.items()},
        {pair: int(values.isnan().sum()) for pair, values in micro.items()},
        micro,
        tuple(levels),
    )


def _pairs(plus: Tensor, minus: Tensor, known: Tensor) -> dict[str, Tensor]:
    found = (
        order_correlation(plus, known),
        order_correlation(minus, known),
        order_correlation(plus, minus),
    )
    return dict(zip(PAIRS, found, strict=True))


def _mean_and_spread(values: Tensor) -> tuple[float, float]:
    """Mean and standard deviation over repeats that have a value."""
    kept = values[~values.isnan()]
    if not len(kept):
        return math.nan, math.nan
    return float(kept.mean()), float(kept.std(correction=0))


def micro_ranks(agreements: Mapping[str, Agreement]) -> dict[str, dict[str, tuple[float, float]]]:
    """The mean rank of each metric over its sizes: ties get the best rank, undefined ranks last.

    Where no metric is defined nobody has a rank. At each size a metric stands among those measured there
    (a metric may have fewer sizes than the others).
    """
    out: dict[str, dict[str, tuple[float, float]]] = {name: {} for name in agreements}
    sizes = sorted({size for found in agreements.values() for size in found.sizes})
    for pair, sign in PAIRS.items():
        ranks: dict[str, list[Tensor]] = {name: [] for name in agreements}
        for size in sizes:
            there = {n: found for n, found in agreements.items() if size in found.sizes}
            repeats = min(len(found.by_size[pair]) for found in there.values())
            scores = torch.stack(
                [found.by_size[pair][:repeats, found.sizes.index(size)] for found in there.values()]
            )
            nothing = scores.isnan().all(0)
            scores = torch.round((scores * sign).nan_to_num(-2.0) / GRID) * GRID
            places = (scores[None] > scores[:, None]).sum(1).double() + 1
            for name, place in zip(there, places.masked_fill(nothing, torch.nan), strict=True):
                ranks[name].append(place)
        for name, found_ranks in ranks.items():
            out[name][pair] = _mean_and_spread(torch.cat(found_ranks))
    return out


@dataclass(frozen=True, eq=False)
class RankingStudy:
    """Macro, micro and micro-rank correlations of every metric with the known order, over repeats.

    `falls[metric][sign]` (repeats, ratios, sizes) holds the mean falls the correlations rest on.
    """

    ratios: tuple[float, ...]
    sizes: Mapping[str, tuple[float, ...]]
    falls: Mapping[str, Mapping[str, Tensor]]
    agreements: Mapping[str, Agreement]
    ranks: Mapping[str, Mapping[str, tuple[float, float]]]
    resolvable: Mapping[str, Mapping[str, bool]]
    explainer: str
    rows: int
    notes: Mapping[str, Any]

    def to_frame(self) -> pd.DataFrame:
        """One row per metric and pair: macro, micro and micro rank with their deviations over repeats."""
        import pandas as pd

        rows = []
        for name, found in self.agreements.items():
            for pair in PAIRS:
                macro, micro, rank = found.macro[pair], found.micro[pair], self.ranks[name][pair]
                rows.append(
                    {
                        "metric": name,
                        "pair": pair,
                        "macro": macro[0],
                        "macro std": macro[1],
                        "micro": micro[0],
                        "micro std": micro[1],
                        "undefined sizes": found.undefined[pair],
                        "micro rank": rank[0],
                        "micro rank std": rank[1],
                        "resolvable": self._resolves(name, pair),
                    }
                )
        return pd.DataFrame(rows)

    def _resolves(self, name: str, pair: str) -> bool:
        signs = {"MoRF vs GT": ("plus",), "LeRF vs GT": ("minus",)}.get(pair, SIGNS)
        return all(self.resolvable[name][sign] for sign in signs)

    def __repr__(self) -> str:
        names = list(self.agreements)
        width = max(18, *map(len, names))
        lines = [
            f"{self.explainer} degraded at {', '.join(f'{r:g}' for r in self.ratios)}; {self.rows} samples",
            f"{'':<32}" + "".join(f"{name:>{width}}" for name in names),
        ]
        for pair, better in PAIRS.items():
            arrow = "lower" if better < 0 else "higher"
            cells = [_cell(self.agreements[n].macro[pair], self._resolves(n, pair)) for n in names]
            lines.append(f"{f'macro {pair} ({arrow})':<32}" + "".join(f"{c:>{width}}" for c in cells))
        for pair in PAIRS:
            cells = [
                _cell(self.agreements[n].micro[pair]) + _undefined(self.agreements[n].undefined[pair])
                for n in names
            ]
            lines.append(f"{f'micro {pair}':<32}" + "".join(f"{c:>{width}}" for c in cells))
        for pair in PAIRS:
            cells = [_cell(self.ranks[n][pair], sign="") for n in names]
            lines.append(f"{f'micro rank {pair}':<32}" + "".join(f"{c:>{width}}" for c in cells))
        return "\n".join([*lines, *self.notes.get("remarks", ())])


def _cell(value: tuple[float, float], resolvable: bool = True, sign: str = "+") -> str:
    mean, spread = value
    if not resolvable:
        return "not resolvable"
    return "-" if mean != mean else f"{mean:{sign}.2f} ±{spread:.2f}"


def _undefined(count: int) -> str:
    return f" ({count} -)" if count else ""


@checked
def ranking_study(
    task: Task,
    explainer: Any = "smoothgrad_squared",
    *,
    finetuned: Finetuned | None = None,
    metrics: Mapping[str, Fidelity] | None = None,
    beta: PartOf = 0.1,
    draws: Count = 50,
    sizes: Sequence[Between] = LEVELS,
    ratios: Sequence[Share] = RATIOS,
    repeats: Count = 5,
    variant: Variant = "indicator",
    reference: Reference | None = None,
    seed: int = 0,
    cache: str | Path | None = None,
    progress: bool | None = None,
) -> RankingStudy:
    """Degrade a good explainer step by step and see which metric finds the order (Tables 1-7 and 10).

    All sizes and both signs of a metric are evaluated in one pass. Expected correlations are -1 (MoRF vs GT),
    +1 (LeRF vs GT) and -1 (MoRF vs LeRF). Where a metric gives all ratios the same score there is none, shown
    as "-"; where its spread over ratios lies inside its bootstrap interval the order is "not resolvable".

    Parameters
    ----------
    task : Task
        The model and the samples, explained for their right answers.
    explainer : Explainer, str, Explanation or Tensor
        Who makes the maps that are degraded, or the maps.
    finetuned : Finetuned, optional
        The fine-tuned model of FFid; None fine-tunes with `beta`.
    metrics : mapping of str to Fid, RFid or FFid, optional
        What is compared; None is Fid, RFid, FFid and Fid with fine-tuning.
    beta, draws, sizes : float, int, sequence of float
        Settings of the default metrics.
    ratios : sequence of float
        Shares of the features whose scores are permuted: at least three, ascending.
    repeats : int
        How often the degradation is drawn.
    variant : {"indicator", "probability"}
        What falls: whether the answer is right, or its probability.
    reference : {"label", "prediction"}, optional
        What a right answer is; None is the label where there is one.
    seed : int
        Seed of all draws.
    cache : str or Path, optional
        Folder of artefacts and explanations.
    progress : bool, optional
        Whether a bar is shown; None shows it on terminals.

    Returns
    -------
    RankingStudy
        Macro, micro and micro-rank correlations of every metric with the known order.
    """
    if len(ratios) < 3 or sorted(set(ratios)) != list(ratios):
        raise InputError(f"a ranking needs at least three ascending ratios, got {tuple(ratios)}")
    refuse_chance(task, reference)
    if metrics is None:
        finetuned = finetuned or finetune(task, beta=beta, cache=cache, progress=progress)
        metrics = default_metrics(finetuned, tuple(sizes), draws)
    key = Key(seed) / "ranking"
    about = studied_maps(task, explainer, reference, seed, cache)
    judged, base, truth = about.task, about.maps, about.truth
    per_sample: dict[str, dict[str, list[list[Tensor]]]] = {}
    for repeat in track(range(repeats), "ranking study", progress):
        for place, ratio in enumerate(ratios):
            if ratio == 0 and repeat:
                # nothing is degraded: the same maps as in the first repeat
                for found in per_sample.values():
                    for kept in found.values():
                        kept[repeat:] = [[kept[0][0]]]
                continue
            worse = degrade(base, ratio, key, repeat)
            for name, falls in falls_of(metrics, judged, worse, truth, variant, Key(seed)).items():
                for sign, values in falls.items():
                    kept = per_sample.setdefault(name, {}).setdefault(sign, [])
                    if place == 0:
                        kept.append([])
                    kept[repeat].append(values)
    levels = {name: evaluated_sizes(judged, metric.sizes) for name, metric in metrics.items()}
    notes: dict[str, Any] = {"draws": draws, "variant": variant, "repeats": repeats}
    artefacts = [metric.artefact(judged) for metric in metrics.values()]
    flags = [flag for artefact in artefacts if artefact is not None for flag in artefact.held_out.flags]
    notes["remarks"] = (*about.notes, *dict.fromkeys(flags))
    return summarised(per_sample, levels, tuple(ratios), base.explainer, len(judged), notes)


def default_metrics(finetuned: Finetuned, sizes: tuple[float, ...], draws: int) -> dict[str, Fidelity]:
    """The metrics of the paper's tables that need no retraining for each explainer."""
    return {
        "Fid": Fid(sizes=sizes),
        "RFid": RFid(sizes=sizes, draws=draws),
        "FFid": FFid(sizes=sizes, draws=draws, finetuned=finetuned, beta=finetuned.beta),
        ABLATION: Fid(sizes=sizes, finetuned=finetuned),
    }


def falls_of(
    metrics: Mapping[str, Fidelity], task: Task, worse: Explanation, truth: Tensor, variant: str, key: Key
) -> dict[str, dict[str, Tensor]]:
    """Falls (N, sizes) of both signs for every metric, one pass each."""
    out: dict[str, dict[str, Tensor]] = {}
    for name, metric in metrics.items():
        if not isinstance(metric, Fidelity):
            raise InputError(f"metrics are Fid, RFid or FFid by name; {name!r} is {type(metric).__name__}")
        evaluator = metric.model_task(task)
        found = measure(
            evaluator, worse, truth, levels=metric.sizes, signs=SIGNS, key=key / "fidelity", **metric.removal
        )
        out[name] = {sign: falls.variant(variant) for sign, falls in found.items()}
    return out


def summarised(
    per_sample: Mapping[str, Mapping[str, list[list[Tensor]]]],
    levels: Mapping[str, tuple[float, ...]],
    ratios: tuple[float, ...],
    explainer: str,
    rows: int,
    notes: Mapping[str, Any],
) -> RankingStudy:
    """The study that these falls of each sample, size and ratio add up to."""
    falls: dict[str, dict[str, Tensor]] = {}
    resolvable: dict[str, dict[str, bool]] = {}
    for name, found in per_sample.items():
        falls[name], resolvable[name] = {}, {}
        for sign, kept in found.items():
            each = torch.stack([torch.stack(row) for row in kept])  # repeats, ratios, N, sizes
            falls[name][sign] = each.nanmean(2)
            resolvable[name][sign] = resolves(area_over_sizes(each[0], levels[name]))
    agreements = {
        name: agreement(found["plus"], found["minus"], ratios, levels[name]) for name, found in falls.items()
    }
    return RankingStudy(
        ratios, levels, falls, agreements, micro_ranks(agreements), resolvable, explainer, rows, notes
    )


def resolves(areas: Tensor) -> bool:
    """Whether the spread of the mean area over ratios (ratios, N) is wider than its bootstrap interval.

    Each sample's own mean over ratios is taken out first: the same samples stand behind every ratio.
    """
    # a sample of one feature has no sizes
    areas = areas[:, ~areas.isnan().any(0)].cpu()
    if areas.shape[-1] < 2:
        return False
    centred = areas - areas.mean(0, keepdim=True)
    low, high = bootstrap_interval(centred)
    means = centred.mean(-1)
    return bool(means.max() - means.min() > (high - low).max())
