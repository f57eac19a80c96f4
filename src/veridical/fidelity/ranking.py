"""The ranking study: does a metric put a good explainer and its degraded versions into the right order?"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from veridical.core import key as keyed
from veridical.core.allowed import Between, Count, PartOf, Share
from veridical.core.key import Key
from veridical.core.progress import track
from veridical.core.settings import checked
from veridical.errors import InputError
from veridical.explainers.transforms import Degradation, degrade
from veridical.fidelity.artefact import Finetuned
from veridical.fidelity.correctness import Reference, refuse_chance, studied_maps
from veridical.fidelity.falls import area_over_sizes, evaluated_sizes
from veridical.fidelity.finetuning import given_or_made
from veridical.fidelity.metrics import LEVELS, FFid, Fid, Fidelity, RFid, Variant
from veridical.fidelity.removal import SIGNS
from veridical.functional import has_spread, spearman
from veridical.values.explanation import Explanation
from veridical.values.task import Task

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

ABLATION = "Fid + fine-tuning"
RATIOS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
PAIRS: dict[str, int] = {"MoRF vs GT": -1, "LeRF vs GT": 1, "MoRF vs LeRF": -1}
"""What is correlated, and the sign it should have."""
GRID = 1e-9
"""Means nearer than this tie: they are sums of the same numbers in another order."""


@dataclass(frozen=True, eq=False)
class Agreement:
    """Correlations of one metric per pair, each as (mean, deviation); NaN where there is none.

    `macro` and `micro` deviate over repeats, `over_sizes` is the micro correlation with its deviation over
    sizes, as the paper prints it. Means are over what is defined, `undefined` is how many (repeat, size) are
    not, and `by_size` (repeats, sizes) holds the correlations themselves at `sizes`.
    """

    macro: Mapping[str, tuple[float, float]]
    micro: Mapping[str, tuple[float, float]]
    over_sizes: Mapping[str, tuple[float, float]]
    undefined: Mapping[str, int]
    by_size: Mapping[str, Tensor]
    sizes: tuple[float, ...]


def agreement(plus: Tensor, minus: Tensor, ratios: Sequence[float], levels: Sequence[float]) -> Agreement:
    """Correlations from mean falls (repeats, ratios, sizes) of both signs."""
    known = torch.tensor(tuple(ratios), dtype=torch.float64, device=plus.device)
    macro = _pairs(area_over_sizes(plus, levels), area_over_sizes(minus, levels), known)
    micro = _pairs(plus.transpose(1, 2), minus.transpose(1, 2), known)  # repeats, sizes, ratios
    return Agreement(
        {pair: _mean_and_spread(values) for pair, values in macro.items()},
        {pair: _mean_and_spread(values.nanmean(-1)) for pair, values in micro.items()},
        {pair: _mean_and_spread(values.nanmean(0)) for pair, values in micro.items()},
        {pair: int(values.isnan().sum()) for pair, values in micro.items()},
        micro,
        tuple(levels),
    )


def _pairs(plus: Tensor, minus: Tensor, known: Tensor) -> dict[str, Tensor]:
    compared = ((plus, known), (minus, known), (plus, minus))
    return dict(zip(PAIRS, (_correlation(a, b) for a, b in compared), strict=True))


def _correlation(scores: Tensor, other: Tensor) -> Tensor:
    """Spearman's correlation along the last dimension; NaN where either is constant."""
    a, b = (torch.round(values / GRID) * GRID for values in (scores, other.expand_as(scores)))
    return spearman(a, b).masked_fill(~(has_spread(a) & has_spread(b)), torch.nan)


def _mean_and_spread(values: Tensor) -> tuple[float, float]:
    """Mean and standard deviation of what has a value; a single one has no deviation."""
    kept = values[~values.isnan()]
    if not len(kept):
        return math.nan, math.nan
    return float(kept.mean()), float(kept.std(correction=0)) if len(kept) > 1 else math.nan


def micro_ranks(agreements: Mapping[str, Agreement]) -> dict[str, dict[str, tuple[float, float]]]:
    """The mean rank of each metric over its sizes: ties get the best rank, undefined ranks last.

    Where no metric is defined nobody has a rank. At each size a metric stands among those measured there
    (a metric may have fewer sizes than the others).
    """
    import pandas as pd

    out: dict[str, dict[str, tuple[float, float]]] = {name: {} for name in agreements}
    for pair, sign in PAIRS.items():
        # a row for each (size, repeat); only sizes a metric does not have stay NaN
        columns = {
            name: pd.DataFrame(found.by_size[pair].cpu().numpy() * sign, columns=found.sizes)
            .fillna(-2.0)
            .stack()
            for name, found in agreements.items()
        }
        scores = (pd.DataFrame(columns) / GRID).round()
        defined = scores[(scores > -2.0 / GRID).any(axis=1)]
        places = defined.rank(axis=1, ascending=False, method="min")
        for name in agreements:
            out[name][pair] = _mean_and_spread(torch.tensor(places[name].to_numpy()))
    return out


@dataclass(frozen=True, eq=False)
class RankingStudy:
    """Macro, micro and micro-rank correlations of every metric with the known order.

    `falls[metric][sign]` (repeats, ratios, sizes) holds the mean falls the correlations rest on.
    """

    ratios: tuple[float, ...]
    sizes: Mapping[str, tuple[float, ...]]
    falls: Mapping[str, Mapping[str, Tensor]]
    resolvable: Mapping[str, Mapping[str, bool]]
    explainer: str
    rows: int
    notes: Mapping[str, Any]

    @cached_property
    def agreements(self) -> dict[str, Agreement]:
        """The correlations of each metric."""
        return {
            name: agreement(found["plus"], found["minus"], self.ratios, self.sizes[name])
            for name, found in self.falls.items()
        }

    @cached_property
    def ranks(self) -> dict[str, dict[str, tuple[float, float]]]:
        """The mean rank of each metric over sizes, with its deviation."""
        return micro_ranks(self.agreements)

    def resolves(self, name: str, pair: str) -> bool:
        """Whether what a metric correlates spreads more than resampled samples without an order do."""
        signs = {"MoRF vs GT": ("plus",), "LeRF vs GT": ("minus",)}.get(pair, SIGNS)
        return all(self.resolvable[name][sign] for sign in signs)

    def to_frame(self) -> pd.DataFrame:
        """One row per metric and pair: macro, micro and micro rank with their deviations."""
        import pandas as pd

        rows = []
        for name, found in self.agreements.items():
            for pair in PAIRS:
                row = {"metric": name, "pair": pair, "undefined sizes": found.undefined[pair]}
                columns = {"macro": found.macro, "micro": found.micro, "micro rank": self.ranks[name]}
                for column, by_pair in columns.items():
                    row |= {column: by_pair[pair][0], f"{column} std": by_pair[pair][1]}
                row["micro std over sizes"] = found.over_sizes[pair][1]
                rows.append(row | {"resolvable": self.resolves(name, pair)})
        return pd.DataFrame(rows)

    def to_json(self) -> dict[str, Any]:
        """All of it as plain data: falls, correlations, ranks and settings; None where there is no value."""
        frames = {"correlations": self.to_frame(), "falls": self.curves()}
        return {
            "explainer": self.explainer,
            "samples": self.rows,
            "ratios": list(self.ratios),
            "sizes": {name: list(sizes) for name, sizes in self.sizes.items()},
            **{name: json.loads(frame.to_json(orient="records")) for name, frame in frames.items()},
            "settings": dict(self.notes),
        }

    def curves(self) -> pd.DataFrame:
        """One row per metric, sign, ratio and size: the mean fall over repeats (Tables 14-23)."""
        import pandas as pd

        rows = [
            {"metric": name, "sign": sign, "ratio": ratio, "size": size, "fall": fall}
            for name, found in self.falls.items()
            for sign, values in found.items()
            for ratio, row in zip(self.ratios, values.mean(0).tolist(), strict=True)
            for size, fall in zip(self.sizes[name], row, strict=True)
        ]
        return pd.DataFrame(rows)

    def plot(self) -> Figure:
        """Falls over sizes, a line per ratio: metrics beside each other, plus above minus (figure 2)."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(3 * len(self.falls), 5), layout="constrained")
        axes = figure.subplots(2, len(self.falls), sharex=True, squeeze=False)
        for column, (name, found) in enumerate(self.falls.items()):
            for ax, (sign, values) in zip(axes[:, column], found.items(), strict=True):
                for place, (ratio, row) in enumerate(zip(self.ratios, values.mean(0).cpu(), strict=True)):
                    shade = f"C{place}" if place else "black"
                    ax.plot(self.sizes[name], row, color=shade, label=f"{ratio:.0%} degraded")
                ax.set_title(f"{name}, {sign}", fontsize=9)
                ax.set(xlabel="explanation size", ylabel="fall")
        axes[0, 0].legend(fontsize=7)
        return figure

    def __repr__(self) -> str:
        width = max(18, *map(len, self.agreements))
        lines = [
            f"{self.explainer} degraded at {', '.join(f'{r:g}' for r in self.ratios)}; {self.rows} samples; "
            "± over repeats (macro) or sizes (micro)",
            f"{'':<32}" + "".join(f"{name:>{width}}" for name in self.agreements),
        ]
        for kind in ("macro", "micro", "micro rank"):
            for pair, better in PAIRS.items():
                arrow = f" ({'lower' if better < 0 else 'higher'})" if kind == "macro" else ""
                cells = "".join(f"{self._cell(kind, name, pair):>{width}}" for name in self.agreements)
                lines.append(f"{f'{kind} {pair}{arrow}':<32}{cells}")
        return "\n".join([*lines, *self.notes.get("remarks", ())])

    def _cell(self, kind: str, name: str, pair: str) -> str:
        found = self.agreements[name]
        if kind == "macro":
            return number(found.macro[pair]) if self.resolves(name, pair) else NOT_RESOLVABLE
        if kind == "micro rank":
            return number(self.ranks[name][pair], sign="")
        missing = found.undefined[pair]
        return number(found.over_sizes[pair]) + (f" ({missing} -)" if missing else "")


NOT_RESOLVABLE = "not resolvable"


def number(value: tuple[float, float], sign: str = "+") -> str:
    """A mean with its deviation where it has one; "-" where there is none."""
    mean, spread = value
    if mean != mean:
        return "-"
    return f"{mean:{sign}.2f}" + (f" ±{spread:.2f}" if spread == spread else "")


@checked
def ranking_study(
    task: Task,
    explainer: Any = "smoothgrad_squared",
    *,
    finetuned: Finetuned | None = None,
    metrics: Mapping[str, Fidelity] | None = None,
    beta: PartOf | None = None,
    draws: Count | None = None,
    sizes: Sequence[Between] | None = None,
    ratios: Sequence[Share] = RATIOS,
    repeats: Count = 5,
    degradation: Degradation = "permuted",
    variant: Variant | None = None,
    reference: Reference | None = None,
    seed: int = 0,
    cache: str | Path | None = None,
    progress: bool | None = None,
) -> RankingStudy:
    """Degrade a good explainer step by step and see which metric finds the order (Tables 1-7 and 10).

    All sizes and both signs of a metric are evaluated in one pass, and tied features averaged over the
    rankings that agree with a map. Expected correlations are -1 (MoRF vs GT), +1 (LeRF vs GT) and -1 (MoRF vs
    LeRF). Where a metric gives all ratios the same score there is none, shown as "-"; where 1% of bootstrap
    samples without any order spread as far over the ratios the order is "not resolvable".

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
    beta, draws, sizes : float, int, sequence of float, optional
        Settings of the default metrics, 0.1, 50 and 5% to 95% by 5% as they are.
    ratios : sequence of float
        Shares of the features whose scores are permuted, or of the noise: at least three, ascending.
    repeats : int
        How often the degradation is drawn.
    degradation : {"permuted", "noise"}
        Whether scores are permuted among themselves, or mixed with noise.
    variant : {"indicator", "probability"}, optional
        What falls, under every metric; None leaves each its own.
    reference : {"label", "prediction"}, optional
        What a right answer is; None is what the metrics say, or the label where there is one.
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

    Raises
    ------
    InputError
        For settings that the given metrics or the given fine-tuned model would ignore, fewer than three
        ratios, or a model at chance.
    """
    if len(ratios) < 3 or sorted(set(ratios)) != list(ratios):
        raise InputError(f"a ranking needs at least three ascending ratios, got {tuple(ratios)}")
    own = {"finetuned": finetuned, "beta": beta, "draws": draws, "sizes": sizes}
    if metrics is not None and any(value is not None for value in own.values()):
        given = ", ".join(name for name, value in own.items() if value is not None)
        raise InputError(f"the given metrics have settings of their own, and {given} would be ignored")
    reference = _one_reference(metrics or {}, reference)
    refuse_chance(task, reference)
    if metrics is None:
        finetuned = given_or_made(task, finetuned, beta, 0.1, cache=cache, progress=progress)
        metrics = default_metrics(finetuned, tuple(sizes or LEVELS), draws or 50)
    if variant is not None:
        metrics = {name: replace(metric, variant=variant) for name, metric in metrics.items()}
    key = Key(seed) / "ranking"
    about = studied_maps(task, explainer, reference, seed)
    judged, base, truth = about.task, about.maps, about.truth
    whole = falls_of(metrics, judged, base, truth, Key(seed)) if ratios[0] == 0 else {}
    measured = [
        [
            whole
            if ratio == 0
            else falls_of(metrics, judged, degrade(base, ratio, key, repeat, degradation), truth, Key(seed))
            for ratio in ratios
        ]
        for repeat in track(range(repeats), "ranking study", progress)
    ]
    per_sample = {
        name: torch.stack([torch.stack([at[name] for at in row], 1) for row in measured], 1)
        for name in metrics
    }
    levels = {name: evaluated_sizes(judged, metric.sizes) for name, metric in metrics.items()}
    artefacts = [metric.artefact(judged) for metric in metrics.values()]
    flags = [flag for artefact in artefacts if artefact is not None for flag in artefact.held_out.flags]
    notes = {
        "metrics": {name: metric.to_json() for name, metric in metrics.items()},
        "repeats": repeats,
        "degradation": degradation,
        "remarks": (*about.notes, *dict.fromkeys(flags)),
    }
    return summarised(per_sample, levels, tuple(ratios), base.explainer, len(judged), notes)


def _one_reference(metrics: Mapping[str, Fidelity], reference: Reference | None) -> Reference | None:
    """What a right answer is, on which the study and its metrics agree."""
    for name, metric in metrics.items():
        if not isinstance(metric, Fidelity):
            raise InputError(f"metrics are Fid, RFid or FFid by name; {name!r} is {type(metric).__name__}")
    named = {reference, *(metric.reference for metric in metrics.values())} - {None}
    if len(named) > 1:
        raise InputError("one ranking study has one right answer: its metrics and reference= name two")
    return next(iter(named), None)


def default_metrics(finetuned: Finetuned, sizes: tuple[float, ...], draws: int) -> dict[str, Fidelity]:
    """The metrics of the paper's tables that need no retraining for each explainer."""
    return {
        "Fid": Fid(sizes=sizes),
        "RFid": RFid(sizes=sizes, draws=draws),
        "FFid": FFid(sizes=sizes, draws=draws, finetuned=finetuned, beta=finetuned.beta),
        ABLATION: Fid(sizes=sizes, finetuned=finetuned),
    }


def falls_of(
    metrics: Mapping[str, Fidelity], task: Task, worse: Explanation, truth: Tensor, key: Key
) -> dict[str, Tensor]:
    """Falls (signs, N, sizes) for every metric, one pass each."""
    out: dict[str, Tensor] = {}
    for name, metric in metrics.items():
        found = metric.falls(task, worse, truth, SIGNS, key / "fidelity")
        out[name] = torch.stack([found[sign].variant(metric.variant) for sign in SIGNS])
    return out


def summarised(
    per_sample: Mapping[str, Tensor],
    levels: Mapping[str, tuple[float, ...]],
    ratios: tuple[float, ...],
    explainer: str,
    rows: int,
    notes: Mapping[str, Any],
) -> RankingStudy:
    """The study of falls (signs, repeats, ratios, N, sizes) by metric."""
    falls = {name: dict(zip(SIGNS, found.nanmean(3), strict=True)) for name, found in per_sample.items()}
    resolvable: dict[str, dict[str, bool]] = {
        name: {
            str(sign): resolves(area_over_sizes(each, levels[name]).mean(0))
            for sign, each in zip(SIGNS, found, strict=True)
        }
        for name, found in per_sample.items()
    }
    return RankingStudy(ratios, levels, falls, resolvable, explainer, rows, notes)


def resolves(areas: Tensor) -> bool:
    """Whether the mean areas (ratios, N) spread more than in 99% of resamples in which no ratio is better.

    Each sample's own mean over ratios is taken out first: the same samples stand behind every ratio.
    """
    # a sample of one feature has no sizes
    areas = areas[:, ~areas.isnan().any(0)].cpu()
    count = areas.shape[-1]
    if count < 2:
        return False
    apart = areas - areas.mean(0)
    means = apart.mean(-1, keepdim=True)
    picks = keyed.integers(Key(0) / "resolves", torch.arange(1000), 0, count, count)
    times = torch.stack([row.bincount(minlength=count) for row in picks]).to(areas.dtype)
    low, high = ((apart - means) @ times.T / count).aminmax(dim=0)
    return bool(means.max() - means.min() > max(float((high - low).quantile(0.99)), GRID))
