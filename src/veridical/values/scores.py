"""Scores: one number a sample, with its direction, its interval and where its variance comes from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from numbers import Real
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from veridical.core import files
from veridical.core.settings import check_settings
from veridical.errors import InputError, ShapeError, visible
from veridical.functional import bootstrap_interval
from veridical.models.cost import Cost

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


SOURCES = ("draws", "fill", "tie orders")
"""What may be drawn again while all else stays."""


BY_DRAW = "by_draw"
"""The detail that holds what each of M draws gives every sample (N, M), where samples share their draws."""


def repeats_of(source: str) -> str:
    """The detail that holds the scores (N, R) of R repeats in which one source was drawn anew."""
    return f"repeats: {source}"


@dataclass(frozen=True)
class Variance:
    """Variances of one sample's score and of the mean over samples, by their source.

    `score["draws"]` is how far a score moves when a metric's draws are made again, `mean["draws"]` how far
    the mean does; "fill" and "tie orders" likewise, one source at a time with the others as they were, so
    that what they do together is in neither. A fill that all samples share moves the mean as much as a score.
    "samples" is what is left: how far samples differ, and in the mean what other samples would have given.
    """

    score: Mapping[str, float]
    mean: Mapping[str, float]
    repeats: int

    @property
    def shares(self) -> dict[str, float]:
        """The share of each source in the variance of a score."""
        total = sum(self.score.values())
        return {source: part / total if total else float("nan") for source, part in self.score.items()}

    def __repr__(self) -> str:
        parts = [
            f"{source} {share:.1%} (sd {self.score[source] ** 0.5:.4g})"
            for source, share in self.shares.items()
        ]
        errors = ", ".join(f"{source} {part**0.5:.4g}" for source, part in self.mean.items())
        return (
            f"Variance of a score: {', '.join(parts)}; standard error of the mean: {errors}; "
            f"{self.repeats} repeats of each source"
        )


def split_variance(values: Tensor, details: Mapping[str, Tensor]) -> Variance:
    """Split the variance of scores (N,) by the repeats among their details."""
    found = {source: details[repeats_of(source)] for source in SOURCES if repeats_of(source) in details}
    if len(found) < len(SOURCES):
        raise InputError(
            "these scores were made once, so what chance did to them is not known; score with repeats=8, as "
            "in vd.score(metric, task, explanation, repeats=8)"
        )
    there = ~torch.stack([values.isnan(), *(each.isnan().any(-1) for each in found.values())]).any(0)
    count = int(there.sum())
    if count < 2:
        raise InputError(f"a variance over samples needs two that have a score, got {count}")
    score = {source: float(each[there].var(-1).mean()) for source, each in found.items()}
    mean = {source: float(each[there].mean(0).var()) for source, each in found.items()}
    # what a source does to all samples alike does not show between them
    between = sum((score[source] - mean[source]) * count / (count - 1) for source in SOURCES)
    samples = max(0.0, float(values[there].var()) - between)
    repeats = next(iter(found.values())).shape[-1]
    return Variance({"samples": samples, **score}, {"samples": samples / count, **mean}, repeats)


class Direction(StrEnum):
    """Which way a metric is better."""

    HIGHER = "higher"
    LOWER = "lower"


def _widened(level: float, samples: int) -> float:
    """The level whose percentiles of resampled means cover `level` (expanded percentiles, Hesterberg)."""
    out = math.sqrt(samples / (samples - 1)) * _students_t(samples - 1, (1 + level) / 2)
    return min(1 - 2 * NormalDist().cdf(-out), 1 - 1e-12)


def _students_t(freedom: int, share: float) -> float:
    """The quantile of Student's t (Abramowitz and Stegun 26.7.5): to 0.15% up to shares of 0.975.

    Printing a score does not load scipy for it, which takes longer than a small score.
    """
    if freedom == 1:
        return math.tan(math.pi * (share - 0.5))
    if freedom == 2:
        return (2 * share - 1) * math.sqrt(0.5 / (share * (1 - share)))
    z = NormalDist().inv_cdf(share)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / freedom**power for power, term in enumerate(terms, 1))


@dataclass(frozen=True, eq=False)
class Curve:
    """A curve per sample: `y` (N, P) over `x` (P,)."""

    x: Tensor
    y: Tensor
    x_label: str
    y_label: str


@dataclass(frozen=True, eq=False, repr=False)
class Scores:
    """One value per sample with its direction; NaN where there is none, and the flag that says why.

    Nothing is averaged before the caller asks, and no average hides a NaN: `mean()` is NaN when a sample
    is, `mean(skip_nan=True)` leaves those out and `flagged` counts them.
    """

    values: Tensor
    direction: Direction
    metric: str
    ids: Tensor
    explainer: str | None = None
    flags: Mapping[str, Tensor] = field(default_factory=dict)
    curve: Curve | None = None
    details: Mapping[str, Tensor] = field(default_factory=dict)
    cost: Cost = field(default_factory=Cost)
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_settings(self)
        if self.values.shape != self.ids.shape[:1]:
            raise ShapeError(f"scores have shape {tuple(self.values.shape)}, expected ({len(self.ids)},)")
        raised = {reason: mask.bool() for reason, mask in self.flags.items() if bool(mask.any())}
        values, flags = _finite_or_flagged(self.values.detach().to(torch.float64), raised)
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "flags", flags)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def utility(self) -> Tensor:
        """The values, negated where lower is better: higher always means better."""
        return self.values if self.direction is Direction.HIGHER else -self.values

    @property
    def flagged(self) -> dict[str, int]:
        """How many samples carry each flag."""
        return {reason: int(mask.sum()) for reason, mask in self.flags.items()}

    @property
    def noise(self) -> str:
        """How far GEF's weight noise went: a setting that was found; empty for other metrics."""
        path = self.provenance.get("path")
        if not isinstance(path, Mapping) or not {"sigma_max", "rule"} <= set(path):
            return ""
        return f"noise up to {path['sigma_max']:.3g}, {path['rule']} path"

    def mean(self, skip_nan: bool = False) -> float:
        """The mean over samples."""
        return float(self.values.nanmean() if skip_nan else self.values.mean())

    def ci(self, level: float = 0.95, resamples: int = 1000, seed: int = 0) -> tuple[float, float]:
        """A bootstrap interval for the mean, over samples that have a value; NaN for fewer than two.

        Its percentiles lie further out the fewer samples there are, as Student's t does beside the normal
        curve: those of the level itself would hold the mean of eight samples in 90% instead of 95%.
        Where samples share draws (`details["by_draw"]`), what other draws would have given is added.
        """
        kept = self.values[~torch.isnan(self.values)].cpu()
        if len(kept) < 2:
            return math.nan, math.nan
        wide = level
        if isinstance(level, Real) and 0 < level < 1:  # all else is refused by the interval itself
            wide = _widened(level, len(kept))
        low, high = map(float, bootstrap_interval(kept, level=wide, resamples=resamples, seed=seed))
        centre, draws = float(kept.mean()), self._error_of_draws(level)
        return centre - math.hypot(centre - low, draws), centre + math.hypot(high - centre, draws)

    def _error_of_draws(self, level: float) -> float:
        """How far the mean may lie from that over other draws, by Student's t over the draws that were made.

        Samples that share their draws (GEF's perturbed models) do not show it: it moves all of them alike.
        """
        if BY_DRAW not in self.details:
            return 0.0
        means = self.details[BY_DRAW].nanmean(0)
        means = means[~means.isnan()]
        if len(means) < 2:
            return 0.0
        return _students_t(len(means) - 1, (1 + level) / 2) * float(means.std()) / math.sqrt(len(means))

    def variance(self) -> Variance:
        """Where the variance comes from: samples, draws, fill, tie orders; of scores made with `repeats`."""
        return split_variance(self.values, self.details)

    def to_csv(self, path: str | Path) -> Path:
        """Write `to_frame`, a row per sample, as a file that spreadsheets open."""
        from veridical.values.tables import write_csv

        return write_csv(self.to_frame(), path)

    def to_frame(self) -> pd.DataFrame:
        """One row per sample: id, value, and the flags it carries."""
        import pandas as pd

        reasons = ["; ".join(r for r, mask in self.flags.items() if bool(mask[i])) for i in range(len(self))]
        return pd.DataFrame(
            {
                "id": self.ids.cpu().numpy(),
                "metric": self.metric,
                "explainer": self.explainer,
                "value": self.values.cpu().numpy(),
                "flags": reasons,
                **{name: _column(value) for name, value in self.details.items()},
            }
        )

    def take(self, index: Tensor | slice) -> Scores:
        """The scores of a subset of the samples (the cost stays that of the whole)."""
        curve = None if self.curve is None else replace(self.curve, y=self.curve.y[index])
        return replace(
            self,
            values=self.values[index],
            ids=self.ids[index],
            curve=curve,
            flags={reason: mask[index] for reason, mask in self.flags.items()},
            details={name: value[index] for name, value in self.details.items()},
        )

    def save(self, path: str | Path) -> Path:
        """Write to one safetensors file."""
        tensors = {"values": self.values, "ids": self.ids}
        tensors |= {f"flag/{reason}": mask for reason, mask in self.flags.items()}
        tensors |= {f"detail/{name}": value for name, value in self.details.items()}
        header: dict[str, Any] = {
            "metric": self.metric,
            "explainer": self.explainer,
            "direction": self.direction.value,
            "cost": [self.cost.forward, self.cost.backward, self.cost.rows],
            "provenance": dict(self.provenance),
        }
        if self.curve is not None:
            tensors |= {"curve/x": self.curve.x, "curve/y": self.curve.y}
            header["curve"] = [self.curve.x_label, self.curve.y_label]
        return files.save_tensors(path, "scores", tensors, header)

    @classmethod
    def load(cls, path: str | Path) -> Scores:
        """Read what `save` wrote."""
        tensors, header = files.load_tensors(path, "scores")

        def group(prefix: str) -> dict[str, Tensor]:
            return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}

        with files.understood(str(path)):
            curve = None
            if "curve" in header:
                curve = Curve(tensors["curve/x"], tensors["curve/y"], *header["curve"])
            return cls(
                tensors["values"],
                Direction(header["direction"]),
                header["metric"],
                tensors["ids"],
                header["explainer"],
                group("flag/"),
                curve,
                group("detail/"),
                Cost(*header["cost"]),
                header["provenance"],
            )

    def plot(self, ax: Axes | None = None, **options: Any) -> Axes:
        """Draw the curve with its spread, or the distribution of the values, and return the axes."""
        from veridical.values.plots import plot_scores

        return plot_scores(self, ax, **options)

    def __repr__(self) -> str:
        low, high = self.ci()
        notes = "".join(f"; {count} flagged '{reason}'" for reason, count in self.flagged.items())
        who = visible(f" of {self.explainer}") if self.explainer else ""
        notes += f"; {self.noise}" if self.noise else ""
        return (
            f"Scores {self.metric}{who}: mean {self.mean(skip_nan=True):.4f} [{low:.4f}, {high:.4f}] "
            f"over {len(self)} samples ({self.direction} is better{notes}), cost {self.cost}"
        )


def joined(parts: Sequence[Scores]) -> Scores:
    """The scores of parts that follow each other as one; costs add up, details stay where shapes agree."""
    first = parts[0]
    if len(parts) == 1:
        return first
    reasons = list(dict.fromkeys(reason for part in parts for reason in part.flags))
    flags = {
        reason: torch.cat(
            [part.flags.get(reason, torch.zeros_like(part.values, dtype=torch.bool)) for part in parts]
        )
        for reason in reasons
    }
    details = {
        name: torch.cat([part.details[name] for part in parts])
        for name, value in first.details.items()
        if all(name in p.details and p.details[name].shape[1:] == value.shape[1:] for p in parts)
    }
    curve = first.curve
    if curve is not None:
        x = curve.x
        same = all(p.curve is not None and torch.equal(p.curve.x, x) for p in parts)
        ys = [p.curve.y for p in parts if p.curve is not None]
        curve = Curve(x, torch.cat(ys), curve.x_label, curve.y_label) if same else None
    cost = sum((part.cost for part in parts), Cost())
    values, ids = (torch.cat([getattr(part, name) for part in parts]) for name in ("values", "ids"))
    return Scores(
        values,
        first.direction,
        first.metric,
        ids,
        first.explainer,
        flags,
        curve,
        details,
        cost,
        first.provenance,
    )


BEYOND, ABSENT = "beyond the range of numbers", "has no value"


def _finite_or_flagged(values: Tensor, flags: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """Infinity becomes NaN, and every NaN gets a flag that says why."""
    if bool(values.isfinite().all()):
        return values, flags
    explained = torch.zeros_like(values, dtype=torch.bool)
    for mask in flags.values():
        explained |= mask.to(explained.device)
    infinite = values.isinf()
    found = {BEYOND: infinite, ABSENT: values.isnan() & ~explained}
    more = {reason: mask for reason, mask in found.items() if bool(mask.any())}
    return values.masked_fill(infinite, torch.nan), {**flags, **more}


def _column(value: Tensor) -> Any:
    array = value.cpu().numpy()
    return array if array.ndim == 1 else list(array)
