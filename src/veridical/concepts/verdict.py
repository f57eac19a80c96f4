"""The verdict on concept methods: which one to use, against which controls, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from veridical.concepts.concepts import Concepts
from veridical.core.key import Key, integers
from veridical.errors import InputError
from veridical.functional import pearson


@dataclass(frozen=True)
class Stability:
    """How alike fits with different seeds are: 1 is the same, whatever the order of concepts.

    `concepts` is the mean cosine of each concept to its nearest one in the other fit, both ways;
    `importances` correlates their importances. Both are means over pairs of fits.
    """

    concepts: float
    importances: float


def stability(fits: Sequence[Concepts]) -> Stability | None:
    """Compare fits of one method with different seeds, in pairs.

    Parameters
    ----------
    fits
        Concepts of the same outputs and dimensions.

    Returns
    -------
    Stability or None
        None for fewer than two fits.

    Raises
    ------
    InputError
        The fits have different shapes.
    """
    if len(fits) < 2:
        return None
    shapes = {(len(fit.vectors), fit.n_outputs, fit.vectors.shape[-1]) for fit in fits}
    if len(shapes) > 1:
        raise InputError(f"fits of one method and head are compared, these have shapes {sorted(shapes)}")
    found = [_alike(a, b) for one, other in combinations(fits, 2) for a, b in ((one, other), (other, one))]
    cosines, importances = torch.tensor(found, dtype=torch.float64).T
    return Stability(float(cosines.mean()), float(importances.nanmean()))


def _alike(one: Concepts, other: Concepts) -> tuple[float, float]:
    """The mean cosine of concepts to their nearest, and the correlation of importances over the matches."""
    unit, near = (torch.nn.functional.normalize(c.vectors, dim=-1) for c in (one, other))
    cosine = unit @ near.mT
    cosine = cosine.masked_fill(~other.present[:, None], 0.0)
    size, at = cosine.abs().max(-1)
    sign = cosine.gather(-1, at[..., None]).squeeze(-1).sign()
    mine, theirs = _matched(one, other, at, sign)
    return float(size[one.present].mean()), float(pearson(mine[None], theirs[None])[0])


def _matched(one: Concepts, other: Concepts, at: Tensor, sign: Tensor) -> tuple[Tensor, Tensor]:
    """Importances of concepts, and of their matches turned the same way, for all outputs in a row."""
    there = one.present.expand_as(one.importances)
    theirs = other.importances.gather(1, at.expand_as(one.importances)) * sign
    return one.importances[there], theirs[there]


_RESAMPLES = 1000
MIN_SAMPLES = 6
"""Samples that an interval needs: of fewer, all lie on one side by chance in more than 2.5% of cases."""
_STABLE = 0.8
"""Mean cosine between seeds below which concepts are called unstable."""


@dataclass(frozen=True)
class Gap:
    """How much larger one error is than another on the same samples, with a 95% interval."""

    mean: float
    low: float
    high: float

    @property
    def sure(self) -> bool:
        """Whether the interval lies above 0."""
        return self.low > 0

    def __str__(self) -> str:
        open_end = "" if math.isfinite(self.low) else " [no interval: too few samples]"
        return f"{self.mean:.3g}" + (open_end or f" [{self.low:.3g}, {self.high:.3g}]")


def gap(larger: Tensor, smaller: Tensor, key: Key) -> Gap:
    """The paired difference of errors (seeds, N) and its bootstrap interval over samples and seeds.

    Samples are drawn together for both; seeds are drawn for each by itself, since they have no pairs. Fewer
    than six samples leave everything open: no interval is given.
    """
    count = larger.shape[-1]
    mean = float(larger.double().mean() - smaller.double().mean())
    if count < MIN_SAMPLES:
        return Gap(mean, -math.inf, math.inf)
    ids = torch.arange(_RESAMPLES, device=larger.device)
    samples = integers(key / "samples", ids, 0, count, count)
    weights = torch.zeros(_RESAMPLES, count, dtype=torch.float64, device=larger.device)
    weights.scatter_add_(1, samples, torch.ones_like(samples, dtype=torch.float64)).div_(count)

    def drawn(errors: Tensor, name: str) -> Tensor:
        seeds = integers(key / name, ids, 0, len(errors), len(errors))
        return (weights @ errors.double().T).gather(1, seeds).mean(1)

    found = drawn(larger, "larger") - drawn(smaller, "smaller")
    low, high = found.quantile(torch.tensor([0.025, 0.975], dtype=found.dtype, device=found.device)).tolist()
    return Gap(mean, low, high)


@dataclass(frozen=True)
class Place:
    """One method in the verdict: its error, its cost to a reader, and what it is worse or better than."""

    method: str
    error: Gap
    """SURF_MAE with its interval."""
    concepts: float
    """Vectors, or active atoms, that a reader is shown for an output."""
    control_gaps: Mapping[str, Gap]
    """How much larger the error of each control is."""
    gap_to_best: Gap | None
    """How much larger its error is than that of the best one; None for the best."""
    stability: Stability | None
    affordable: bool
    """Whether it shows no more concepts than were asked for."""

    @property
    def trusted(self) -> bool:
        """Whether it is surely better than every control."""
        return all(found.sure for found in self.control_gaps.values())


@dataclass(frozen=True)
class ConceptVerdict:
    """Methods, the most faithful first, and the verdict in words."""

    places: tuple[Place, ...]
    sentences: tuple[str, ...]

    @property
    def best(self) -> str | None:
        """The most faithful method at the reader's cost, or None where none is better than the controls."""
        kept = [p.method for p in self.places if p.affordable and p.trusted]
        return kept[0] if kept else None

    def __repr__(self) -> str:
        return "\n".join(self.sentences)


def decide(
    errors: Mapping[str, Tensor],
    controls: Mapping[str, Tensor],
    charged: Mapping[str, float],
    stable: Mapping[str, Stability | None],
    requested: float,
    key: Key,
) -> ConceptVerdict | None:
    """Order methods by SURF_MAE (seeds, N) at equal cost to a reader; None where there are none."""
    order = sorted(errors, key=lambda name: (charged[name] > requested + 0.5, float(errors[name].mean())))
    if not order:
        return None
    first = errors[order[0]]
    nothing = torch.zeros_like(first[:1])
    places = tuple(
        Place(
            name,
            gap(errors[name], nothing, key / name),
            charged[name],
            {
                control: gap(theirs, errors[name], key / name / control)
                for control, theirs in controls.items()
            },
            None if name == order[0] else gap(errors[name], first, key / name / "best"),
            stable.get(name),
            charged[name] <= requested + 0.5,
        )
        for name in order
    )
    return ConceptVerdict(places, tuple(_sentences(places)))


def _sentences(places: tuple[Place, ...]) -> list[str]:
    good = [p for p in places if p.affordable and p.trusted]
    if good:
        best = good[0]
        weakest = min(best.control_gaps, key=lambda name: best.control_gaps[name].mean)
        sentences = [
            f"{best.method} is the most faithful of {len(places)} concept methods: SURF_MAE {best.error}, "
            f"{best.control_gaps[weakest]} below the nearest control ({weakest})."
        ]
        rivals = [p for p in places if p.affordable and p is not best]
        near = [p.method for p in rivals if p.gap_to_best is not None and not p.gap_to_best.sure]
        if near:
            sentences.append(f"It cannot be told apart from {', '.join(near)}.")
        if best.stability is not None and best.stability.concepts < _STABLE:
            sentences.append(
                f"Its concepts change with the seed: their mean cosine is {best.stability.concepts:.2f}."
            )
    elif not math.isfinite(places[0].error.low):
        sentences = [
            f"Fewer than {MIN_SAMPLES} samples say nothing for sure: no concept method is recommended."
        ]
    elif (
        "Constant" in places[0].control_gaps
        and places[0].control_gaps["Constant"].mean + places[0].error.mean <= 1e-12
    ):
        sentences = ["The outputs do not vary over these samples: there is nothing for concepts to explain."]
    else:
        sentences = ["No concept method is surely better than the controls: none of them explains this head."]
    poor = [p.method for p in places if not p.trusted and p not in good]
    if good and poor:
        sentences.append(f"Not better than a control: {', '.join(poor)}.")
    expensive = [f"{p.method} ({p.concepts:.0f})" for p in places if not p.affordable]
    if expensive:
        sentences.append(
            f"Set apart, since they show a reader more concepts than asked for: {', '.join(expensive)}."
        )
    return sentences
