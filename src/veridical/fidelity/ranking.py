"""The ranking study: does a metric put a good explainer and its degraded versions into the right order?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from veridical.api import as_explanation
from veridical.core.allowed import Between, Count, PartOf, Share
from veridical.core.key import Key
from veridical.core.progress import track
from veridical.core.settings import checked
from veridical.errors import InputError
from veridical.fidelity.artefact import Finetuned
from veridical.fidelity.correctness import Reference, refuse_chance
from veridical.fidelity.correlations import PAIRS, Agreement, agreement, micro_ranks
from veridical.fidelity.degradation import RATIOS, degraded
from veridical.fidelity.finetuning import finetune
from veridical.fidelity.judged_maps import judged_maps
from veridical.fidelity.masked_pass import area_over_sizes, levels_of, measure
from veridical.fidelity.metrics import LEVELS, FFid, Fid, Fidelity, RFid, Variant
from veridical.fidelity.removal import SIGNS
from veridical.fidelity.roar import ROAR, Retraining, retrain, train_task
from veridical.functional import bootstrap_interval
from veridical.values.explanation import Explanation
from veridical.values.task import Task

if TYPE_CHECKING:
    import pandas as pd

ABLATION = "Fid + fine-tuning"


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
        if "retrainings" in self.notes:
            lines.append(
                "ROAR took {retrainings} retrainings over {rows trained} rows, and explained {training rows "
                "explained} training rows".format(**self.notes)
            )
        return "\n".join([*lines, *self.notes.get("said", ())])


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
    roar: ROAR | None = None,
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
    """Degrade a good explainer step by step and ask each metric for the order (Tables 1-7 and 10).

    By default Fid, RFid, FFid and Fid with fine-tuning are asked, in one pass for all sizes and both signs;
    `roar` adds ROAR at its own sizes, which retrains for every ratio, repeat, size and sign. Expected are -1
    (MoRF vs GT), +1 (LeRF vs GT) and -1 (MoRF vs LeRF). Where a metric gives all ratios the same score there
    is no correlation, shown as "-"; where its spread over ratios lies inside its bootstrap interval the order
    is "not resolvable".
    """
    if len(ratios) < 3 or sorted(set(ratios)) != list(ratios):
        raise InputError(f"a ranking needs at least three ascending ratios, got {tuple(ratios)}")
    refuse_chance(task, reference)
    if metrics is None:
        finetuned = finetuned or finetune(task, beta=beta, cache=cache, progress=progress)
        metrics = default_metrics(finetuned, tuple(sizes), draws)
    key = Key(seed) / "ranking"
    about = judged_maps(task, explainer, reference, seed, cache)
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
            worse = degraded(base, ratio, repeat, key)
            for name, falls in asked(metrics, judged, worse, truth, variant, Key(seed)).items():
                for sign, values in falls.items():
                    kept = per_sample.setdefault(name, {}).setdefault(sign, [])
                    if place == 0:
                        kept.append([])
                    kept[repeat].append(values)
    levels = {name: levels_of(judged, metric.sizes) for name, metric in metrics.items()}
    notes: dict[str, Any] = {"draws": draws, "variant": variant, "repeats": repeats}
    judges = [judge for metric in metrics.values() if (judge := metric.artefact(judged)) is not None]
    flags = [flag for judge in judges for flag in judge.certificate.flags]
    notes["said"] = (*about.notes, *dict.fromkeys(flags))
    if roar is not None:
        per_sample["ROAR"], cost = _roar_falls(
            roar, judged, explainer, base, truth, ratios, repeats, variant, key, progress
        )
        notes |= cost
        levels["ROAR"] = roar.sizes
    return _summed(per_sample, levels, tuple(ratios), base.explainer, len(judged), notes)


def default_metrics(finetuned: Finetuned, sizes: tuple[float, ...], draws: int) -> dict[str, Fidelity]:
    """The metrics of the paper's tables that need no retraining for each explainer."""
    return {
        "Fid": Fid(sizes=sizes),
        "RFid": RFid(sizes=sizes, draws=draws),
        "FFid": FFid(sizes=sizes, draws=draws, finetuned=finetuned, beta=finetuned.beta),
        ABLATION: Fid(sizes=sizes, finetuned=finetuned),
    }


def asked(
    metrics: Mapping[str, Fidelity], task: Task, worse: Explanation, truth: Tensor, variant: str, key: Key
) -> dict[str, dict[str, Tensor]]:
    """Falls (N, sizes) of both signs for every metric, one pass each."""
    out: dict[str, dict[str, Tensor]] = {}
    for name, metric in metrics.items():
        if not isinstance(metric, Fidelity):
            raise InputError(f"metrics are Fid, RFid or FFid by name; {name!r} is {type(metric).__name__}")
        judge = metric.model_task(task)
        found = measure(
            judge, worse, truth, levels=metric.sizes, signs=SIGNS, key=key / "fidelity", **metric.removal
        )
        out[name] = {sign: falls.variant(variant) for sign, falls in found.items()}
    return out


def _roar_falls(
    roar: ROAR,
    task: Task,
    explainer: Any,
    base: Explanation,
    truth: Tensor,
    ratios: Sequence[float],
    repeats: int,
    variant: str,
    key: Key,
    progress: bool | None,
) -> tuple[dict[str, list[list[Tensor]]], dict[str, int]]:
    """ROAR's falls for every repeat and ratio, and its cost; the training set is explained once."""
    if isinstance(explainer, Explanation | Tensor):
        raise InputError("ROAR explains the training rows: give an explainer, not finished maps")
    learnt = as_explanation(explainer, train_task(task), key.seed)
    how = Retraining(roar.epochs, roar.rate, roar.batch, start=roar.start)
    out: dict[str, list[list[Tensor]]] = {sign: [] for sign in SIGNS}
    cost = {"retrainings": 0, "rows trained": 0, "training rows explained": len(learnt)}
    for repeat in range(repeats):
        for sign in SIGNS:
            row: list[Tensor] = []
            for ratio in ratios:
                if ratio == 0 and repeat:
                    row.append(out[sign][0][0])
                    continue
                found = retrain(
                    task,
                    degraded(base, ratio, repeat, key),
                    degraded(learnt, ratio, repeat, key),
                    truth,
                    sign=sign,
                    levels=roar.sizes,
                    how=how,
                    key=key / "roar",
                    progress=progress,
                )
                cost["retrainings"] += found.retrainings
                cost["rows trained"] += found.rows_trained
                row.append(found.indicator if variant == "indicator" else found.probability)
            out[sign].append(row)
    return out, cost


def _summed(
    per_sample: Mapping[str, Mapping[str, list[list[Tensor]]]],
    levels: Mapping[str, tuple[float, ...]],
    ratios: tuple[float, ...],
    explainer: str,
    rows: int,
    notes: Mapping[str, Any],
) -> RankingStudy:
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
