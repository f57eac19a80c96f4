"""Several concept methods on one task (table 4), and the verdict: which one to use, how surely."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from veridical.concepts.concepts import Concepts
from veridical.concepts.embeddings import Embeddings, Head, Kind
from veridical.concepts.materials import entries, materials_of
from veridical.concepts.measures import LABELS, Judgement, judge, shown, text_table
from veridical.concepts.methods.base import ConceptMethod
from veridical.concepts.sanity_check import constant, perfect, random_concepts, random_importances
from veridical.concepts.splitting import Split
from veridical.concepts.upper_bound import ErrorSplit, error_split, rank_optimum
from veridical.core.key import Key, as_key, integers
from veridical.errors import InputError, NotApplicableError
from veridical.functional import pearson
from veridical.values.task import Task

if TYPE_CHECKING:
    import pandas as pd


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


COLUMNS = ("mae", "emd", "rmse", "top1", "rank", "attributes", "concepts")


CONTROLS = ("Rand-Imp", "Full-Rand", "Constant")
"""What a method must beat: the head's directions with random importances, all random, and the mean output."""
_DRAWS = 10
"""Draws of the random controls."""


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Concepts and their judgement for every method; `refused` says why a method does not apply.

    `controls` are judged as methods are: Perfect (which must be exact), Rand-Imp, Full-Rand and Constant, of
    which the first draw is shown. `optimum` is the least RMSE that as many shared directions as were asked
    for can have on the judged samples. `verdict` compares all of it, with paired intervals.
    """

    judgements: dict[str, Judgement]
    concepts: dict[str, Concepts]
    splits: dict[str, ErrorSplit]
    refused: dict[str, str]
    controls: dict[str, Judgement] = field(default_factory=dict)
    optimum: Judgement | None = None
    stability: dict[str, Stability | None] = field(default_factory=dict)
    verdict: ConceptVerdict | None = None

    def to_frame(self) -> pd.DataFrame:
        """One row per method."""
        import pandas as pd

        rows = [
            {
                "method": name,
                **found.summary,
                "error_of_concepts": self.splits[name].concepts,
                "error_of_importances": self.splits[name].importances,
            }
            for name, found in self.judgements.items()
        ]
        return pd.DataFrame(rows)

    def __repr__(self) -> str:
        columns = [c for c in COLUMNS if any(c in j.summary for j in self.judgements.values())]

        def row(name: str, found: Judgement, *rest: str) -> list[str]:
            return [name, *(shown(c, found.summary.get(c, float("nan"))) for c in columns), *rest]

        rows = [
            row(
                name,
                found,
                f"{self.splits[name].concepts:.4g}",
                f"{self.splits[name].importances:.4g}",
            )
            for name, found in self.judgements.items()
        ]
        rows += [row(name, found, "", "") for name, found in self.controls.items()]
        if self.optimum is not None:
            rows.append(row(f"optimum of {self.optimum.concepts:.0f} shared", self.optimum, "", ""))
        head = ["Method", *(LABELS.get(c, c.capitalize()) for c in columns), "MAE: concepts", "importances"]
        notes = [f"{name}: {why}" for name, why in self.refused.items()]
        notes += [
            f"{name}: {note}"
            for name, j in self.judgements.items()
            for note in j.notes
            if "trivially" in note
        ]
        words = [] if self.verdict is None else [*self.verdict.sentences, ""]
        return "\n".join([*words, text_table(head, rows), *notes])


def compare(
    train: Task | Split | Embeddings,
    methods: Any,
    seed: int | Key = 0,
    seeds: int = 1,
    layer: str | None = None,
    *,
    test: Embeddings | None = None,
    head: Head | None = None,
    materials: Mapping[Kind, Embeddings] | None = None,
) -> Comparison:
    """Fit each method on train rows, judge it on others, and say which one to use.

    Parameters
    ----------
    train
        A task, or its `split`, which brings train rows, inputs to judge on and the head; or train embeddings.
    methods
        Concept methods, names of them, ready `Concepts` and loaded dictionaries, in a list or in a mapping
        from labels. One that does not apply is left out, with its reason.
    seed
        Keys the draws of methods and controls.
    seeds
        How often methods that draw are fitted: intervals cover the seeds, and `stability` says whether
        concepts stay the same.
    layer
        The linear layer at which a task's model is split; found by itself otherwise.
    test, head
        Embeddings to judge on and their head, where `train` are embeddings.
    materials
        Positions, crops or segments for methods that are fitted on those, by kind; a task makes them itself.

    Returns
    -------
    Comparison
        A judgement per method and control, the best possible one, and the verdict.

    Raises
    ------
    InputError
        No method is given, or embeddings come without test rows or head.
    """
    rows, own, test, head = materials_of(train, test, head, materials, layer)
    if seeds < 1:
        raise InputError(f"seeds is at least 1, got {seeds}")
    chosen = entries(methods)
    if not chosen:
        raise InputError("give at least one concept method, the name of one, or ready concepts")
    key = as_key(seed)
    keys = [key, *(key / "seed" / i for i in range(1, seeds))]
    judgements: dict[str, Judgement] = {}
    concepts: dict[str, Concepts] = {}
    splits: dict[str, ErrorSplit] = {}
    refused: dict[str, str] = {}
    stable: dict[str, Stability | None] = {}
    errors: dict[str, Tensor] = {}
    for label, item in chosen.items():
        often = keys if isinstance(item, ConceptMethod) and item.stochastic else keys[:1]
        try:
            fits = [replace(rows.concepts(item, head, each), method=label) for each in often]
        except NotApplicableError as error:
            refused[label] = str(error)
            continue
        found = [judge(fits[0], test, head)]
        found += [judge(each, test, head, companions=False) for each in fits[1:]]
        concepts[label], judgements[label] = fits[0], found[0]
        splits[label] = error_split(fits[0], own, test, head)
        stable[label] = stability(fits)
        errors[label] = torch.stack([each.values["mae"] for each in found])
    requested = max((i.n_concepts for i in chosen.values() if isinstance(i, ConceptMethod)), default=0)
    requested = requested or max((round(c.charged) for c in concepts.values()), default=1)
    controls, drawn = _controls(own, test, head, key)
    most = min(requested, *head.weight.shape)
    optimum = judge(rank_optimum(test, head, most), test, head)
    charged = {label: found.concepts for label, found in judgements.items()}
    verdict = decide(errors, drawn, charged, stable, requested, key / "verdict")
    return Comparison(judgements, concepts, splits, refused, controls, optimum, stable, verdict)


def _controls(
    train: Embeddings, test: Embeddings, head: Head, key: Key
) -> tuple[dict[str, Judgement], dict[str, Tensor]]:
    """The controls judged, and the errors (draws, N) of those that a method must beat."""
    if bool((head.norms == 0).any()):  # an output without weights has no direction to take
        flat = constant(train, head)
        return {flat.method: judge(flat, test, head)}, {
            flat.method: judge(flat, test, head).values["mae"][None]
        }
    drawn = {
        "Rand-Imp": [random_importances(head, key, draw) for draw in range(_DRAWS)],
        "Full-Rand": [random_concepts(head, key, draw) for draw in range(_DRAWS)],
        "Constant": [constant(train, head)],
    }
    shown_too = {"Perfect": judge(perfect(head), test, head)}
    shown_too |= {name: judge(found[0], test, head) for name, found in drawn.items()}
    errors = {
        name: torch.stack([judge(c, test, head, companions=False).values["mae"] for c in found])
        for name, found in drawn.items()
    }
    return shown_too, errors
