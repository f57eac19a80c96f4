"""Where a score's variance comes from: the samples, a metric's draws, the fill, the order of ties."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from veridical.errors import InputError

SOURCES = ("draws", "fill", "tie orders")
"""What may be drawn again while all else stays."""


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
