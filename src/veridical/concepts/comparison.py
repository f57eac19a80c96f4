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
from veridical.concepts.materials import Entry, entries, materials_of
from veridical.concepts.measures import LABELS, REBUILT, ErrorSplit, Judgement, error_split, judge, shown
from veridical.concepts.methods.base import ConceptMethod
from veridical.concepts.sanity_check import (
    constant,
    perfect,
    random_concepts,
    random_importances,
    rank_optimum,
)
from veridical.concepts.splitting import Split
from veridical.core.allowed import Count
from veridical.core.key import Key, as_key, integers
from veridical.core.settings import checked
from veridical.errors import InputError, MissingExtraError, NotApplicableError
from veridical.functional import pearson
from veridical.plots import COLOURS, axes
from veridical.values.tables import text_table
from veridical.values.task import Task

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Stability:
    """How alike fits with different seeds are: 1 is the same, whatever the order of concepts.

    `concepts` is the mean cosine of each concept to its nearest one in the other fit, both ways;
    `importances` correlates their importances. Both are means over pairs of fits.
    """

    concepts: float
    importances: float


@checked
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
    there = one.present.expand_as(one.importances)
    theirs = other.importances.gather(1, at.expand_as(one.importances)) * sign
    alike = pearson(one.importances[there][None], theirs[there][None])
    return float(size[one.present].mean()), float(alike[0])


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
        if not math.isfinite(self.low):
            return f"{self.mean:.3g} [no interval: too few samples]"
        return f"{self.mean:.3g} [{self.low:.3g}, {self.high:.3g}]"


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
    bare: int
    """Outputs that have no concepts."""
    control_gaps: Mapping[str, Gap]
    """How much larger the error of each control is."""
    gap_to_best: Gap | None
    """How much larger its error is than that of the best one; None for the best."""
    stability: Stability | None
    set_apart: str | None
    """Why it cannot be recommended at all: what it shows is too much, or everything."""

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
        kept = [p.method for p in self.places if p.set_apart is None and p.trusted]
        return kept[0] if kept else None

    def __repr__(self) -> str:
        return "\n".join(self.sentences)


def decide(
    errors: Mapping[str, Tensor],
    controls: Mapping[str, Tensor],
    judgements: Mapping[str, Judgement],
    requested: Mapping[str, float],
    stable: Mapping[str, Stability | None],
    key: Key,
) -> ConceptVerdict | None:
    """Order methods by SURF_MAE (seeds, N), those that show too much last; None where there are none.

    How many concepts a method may show is what was requested of it: no other entry changes that.
    """
    apart: dict[str, str | None] = {}
    for name, found in judgements.items():
        apart[name] = None
        if found.concepts > requested[name] + 0.5:
            apart[name] = f"{found.concepts:.0f} vectors where {requested[name]:.0f} concepts were requested"
        elif any(REBUILT in note and "all outputs" in note for note in found.notes):
            apart[name] = f"its {found.concepts:.0f} concepts span all that is judged"
    order = sorted(errors, key=lambda name: (apart[name] is not None, float(errors[name].mean())))
    if not order:
        return None
    first = errors[order[0]]
    nothing = torch.zeros_like(first[:1])
    places = tuple(
        Place(
            name,
            gap(errors[name], nothing, key),
            judgements[name].concepts,
            len(judgements[name].flags),
            {which: gap(theirs, errors[name], key) for which, theirs in controls.items()},
            None if name == order[0] else gap(errors[name], first, key),
            stable.get(name),
            apart[name],
        )
        for name in order
    )
    return ConceptVerdict(places, tuple(_sentences(places)))


def _sentences(places: tuple[Place, ...]) -> list[str]:
    fair = [p for p in places if p.set_apart is None]
    good = [p for p in fair if p.trusted]
    flat = places[0].control_gaps.get("Constant")
    if good:
        best = good[0]
        weakest = min(best.control_gaps, key=lambda name: best.control_gaps[name].mean)
        sentences = [
            f"{best.method} is the most faithful of {len(places)} concept methods: SURF_MAE {best.error}, "
            f"{best.control_gaps[weakest]} below the nearest control ({weakest})."
        ]
        near = [p.method for p in fair if p.gap_to_best is not None and not p.gap_to_best.sure]
        if near:
            sentences.append(f"It is not separated from {', '.join(near)}.")
        if best.stability is not None and best.stability.concepts < _STABLE:
            sentences.append(
                f"Its concepts change with the seed: their mean cosine is {best.stability.concepts:.2f}."
            )
        poor = [p.method for p in places if not p.trusted]
        if poor:
            sentences.append(f"Not better than a control: {', '.join(poor)}.")
    elif not math.isfinite(places[0].error.low):
        sentences = [f"Fewer than {MIN_SAMPLES} samples decide nothing: no concept method is recommended."]
    elif flat is not None and flat.mean + places[0].error.mean <= 1e-12:
        sentences = ["The outputs do not vary over these samples: there is nothing for concepts to explain."]
    else:
        sentences = ["No concept method is surely better than the controls: none of them explains this head."]
    bare = [f"{p.method} (of {p.bare})" for p in places if p.bare]
    if bare:
        sentences.append(f"Outputs without any concepts, whose surrogate is the bias: {', '.join(bare)}.")
    apart = [f"{p.method} ({p.set_apart})" for p in places if p.set_apart is not None]
    if apart:
        sentences.append(f"Set apart: {'; '.join(apart)}.")
    return sentences


COLUMNS = ("mae", "emd", "rmse", "top1", "rank", "attributes", "concepts", "without_concepts")


CONTROLS = ("Rand-Imp", "Full-Rand", "Constant")
"""What a method must beat: the head's directions with random importances, all random, and the mean output."""
_DRAWS = 10
"""Draws of the random controls."""
_FLAGS = 5
"""Outputs without concepts that are listed for each method at most, with why."""


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Concepts and their judgement for every method; `refused` says why a method does not apply.

    `controls` are judged as methods are: Perfect (which must be exact), Rand-Imp, Full-Rand and Constant, of
    which the first draw is shown. `optimum` is the least RMSE that as many shared directions as were
    requested can have on the judged samples. `verdict` compares all of it, with paired intervals.
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
            {"method": name, **found.summary, **self._errors(name)} for name, found in self.judgements.items()
        ]
        return pd.DataFrame(rows)

    def _errors(self, name: str) -> dict[str, float]:
        found = self.splits[name]
        return {"error_of_concepts": found.concepts, "error_of_importances": found.importances}

    def __repr__(self) -> str:
        columns = [c for c in COLUMNS if any(c in j.summary for j in self.judgements.values())]

        def row(name: str, found: Judgement, *rest: str) -> list[str]:
            return [name, *(shown(c, found.summary.get(c, float("nan"))) for c in columns), *rest]

        rows = [
            row(name, found, *(f"{error:.4g}" for error in self._errors(name).values()))
            for name, found in self.judgements.items()
        ]
        rows += [row(name, found, "", "") for name, found in self.controls.items()]
        if self.optimum is not None:
            rows.append(row(f"optimum of {self.optimum.concepts:.0f} shared", self.optimum, "", ""))
        head = ["Method", *(LABELS.get(c, c.capitalize()) for c in columns), "MAE: concepts", "importances"]
        notes = [f"{name}: {why}" for name, why in self.refused.items()]
        notes += [f"{n}: {note}" for n, j in self.judgements.items() for note in j.notes if REBUILT in note]
        notes += [
            f"{n}: output {output} has no concepts: {why}"
            for n, j in self.judgements.items()
            for output, why in list(j.flags.items())[:_FLAGS]
        ]
        words = [] if self.verdict is None else [*self.verdict.sentences, ""]
        return "\n".join([*words, text_table(head, rows), *notes])


@checked
def compare(
    train: Task | Split | Embeddings,
    methods: Any,
    seed: int | Key = 0,
    seeds: Count = 1,
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
        from labels. One that does not apply, or cannot be fitted here, is left out, with its reason.
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
        No method is given, or none can be fitted; embeddings come without test rows or head.
    """
    rows, own, test, head = materials_of(train, test, head, materials, layer)
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
    requested: dict[str, float] = {}
    for label, item in chosen.items():
        often = keys if isinstance(item, ConceptMethod) and item.stochastic else keys[:1]
        try:
            fits = [replace(rows.concepts(item, head, each), method=label) for each in often]
        except (NotApplicableError, InputError, MissingExtraError) as error:
            last = len(refused) + 1 == len(chosen)
            if last and not isinstance(error, NotApplicableError):
                raise  # nothing is left to compare
            refused[label] = str(error)
            continue
        found = [judge(fits[0], test, head)]
        found += [judge(each, test, head, companions=False) for each in fits[1:]]
        concepts[label], judgements[label] = fits[0], found[0]
        splits[label] = error_split(fits[0], own, test, head)
        stable[label] = stability(fits)
        errors[label] = torch.stack([each.values["mae"] for each in found])
        requested[label] = item.n_concepts if isinstance(item, ConceptMethod) else found[0].concepts
    controls, drawn = _controls(own, test, head, key)
    most = min(round(max(requested.values(), default=1)), *head.weight.shape)
    optimum = judge(rank_optimum(test, head, most), test, head)
    verdict = decide(errors, drawn, judgements, requested, stable, key / "verdict")
    return Comparison(judgements, concepts, splits, refused, controls, optimum, stable, verdict)


def _controls(
    train: Embeddings, test: Embeddings, head: Head, key: Key
) -> tuple[dict[str, Judgement], dict[str, Tensor]]:
    """The controls judged, and the errors (draws, N) of those that a method must beat."""
    drawn = {"Constant": [constant(train, head)]}
    shown_too = {}
    if bool((head.norms > 0).all()):  # an output without weights has no direction to take
        shown_too["Perfect"] = judge(perfect(head), test, head)
        drawn = {
            "Rand-Imp": [random_importances(head, key, draw) for draw in range(_DRAWS)],
            "Full-Rand": [random_concepts(head, key, draw) for draw in range(_DRAWS)],
            **drawn,
        }
    shown_too |= {name: judge(found[0], test, head) for name, found in drawn.items()}
    errors = {
        name: torch.stack([judge(c, test, head, companions=False).values["mae"] for c in found])
        for name, found in drawn.items()
    }
    return shown_too, errors


def plateau(counts: Sequence[int], errors: Sequence[float], tolerance: float = 0.05) -> int | None:
    """The fewest concepts whose error is within a share of the whole improvement of the best one.

    `error(K) <= best + tolerance (first - best)`. A curve that never improves has its plateau at the start;
    one that still falls at its end has none (None): more concepts would tell, unless its end is an error of
    0. Nor has a single point.

    >>> plateau([1, 2, 4, 8], [10.0, 4.0, 1.2, 1.0])
    4
    """
    if len(counts) != len(errors) or not counts:
        raise InputError(f"one error per count is needed, got {len(errors)} for {len(counts)}")
    if not all(math.isfinite(error) for error in errors):
        raise InputError(f"errors of a curve are finite numbers, got {list(errors)}")
    best = min(errors)
    enough = best + tolerance * max(0.0, errors[0] - best)
    found = next(k for k, error in zip(counts, errors, strict=True) if error <= enough + 1e-12)
    return None if found == counts[-1] and (best > 1e-12 or len(counts) == 1) else found


@dataclass(frozen=True, eq=False, repr=False)
class Parsimony:
    """One judgement per number of concepts."""

    method: str
    counts: tuple[int, ...]
    judgements: tuple[Judgement, ...]

    def errors(self, name: str = "mae") -> list[float]:
        """The curve of one measure."""
        return [float(getattr(judgement, name)) for judgement in self.judgements]

    def suggested(self, name: str = "mae") -> int | None:
        """The number of concepts at the plateau; None where the curve has none."""
        return plateau(self.counts, self.errors(name))

    def to_frame(self) -> pd.DataFrame:
        """One row per number of concepts."""
        import pandas as pd

        rows = [
            {"method": self.method, "n_concepts": k, **judgement.summary}
            for k, judgement in zip(self.counts, self.judgements, strict=True)
        ]
        return pd.DataFrame(rows)

    def plot(self, name: str = "mae", ax: Axes | None = None, color: str | None = None) -> Axes:
        """An error over the number of concepts, the plateau marked with a ring (figure 2).

        Several curves on one `ax` get colours of their own; `ax.legend()` names them.
        """
        ax = axes(ax)
        errors, best = self.errors(name), self.suggested(name)
        color = color or COLOURS[len(ax.get_lines()) // 2 % len(COLOURS)]
        label = self.method if best is None else f"{self.method} (K = {best})"
        ax.plot(self.counts, errors, "o-", color=color, markersize=3, label=label)
        if best is not None:
            ring = errors[self.counts.index(best)]
            ax.plot(best, ring, "o", markersize=10, fillstyle="none", color=color)
        ax.set(xticks=self.counts, xlabel="concepts per output", ylabel=LABELS.get(name, name))
        ax.spines[["top", "right"]].set_visible(False)
        return ax

    def __repr__(self) -> str:
        curve = ", ".join(f"{k}: {e:.4g}" for k, e in zip(self.counts, self.errors(), strict=True))
        found = self.suggested()
        end = "no plateau up to there" if found is None else f"plateau at {found}"
        end = "one point, so no plateau" if len(self.counts) == 1 else end
        pairs = zip(self.counts, self.judgements, strict=True)
        bare = [f"{len(found.flags)} at {k}" for k, found in pairs if found.flags]
        end += f"; outputs without concepts: {', '.join(bare)}" if bare else ""
        return f"Parsimony of {self.method}, SURF_MAE by concepts: {curve}; {end}"


@checked
def parsimony(
    method: Entry | str,
    train: Task | Split | Embeddings,
    test: Embeddings | None = None,
    head: Head | None = None,
    counts: Sequence[Count] = (1, 2, 3, 5, 8, 12),
    seed: int | Key = 0,
    materials: Mapping[Kind, Embeddings] | None = None,
) -> Parsimony:
    """Fit with each number of concepts and judge on the test embeddings.

    Ready `Concepts` and loaded dictionaries are not fitted again: theirs is one point, at the number of
    concepts they show.

    Parameters
    ----------
    method
        A concept method or its name.
    train, test, head
        Train embeddings, test embeddings and their head; or a task, or its `split`, in place of all three.
    counts
        Numbers of concepts, rising.
    seed
        Keys the draws of the method.
    materials
        Positions, crops or segments for methods that are fitted on those, by kind.

    Returns
    -------
    Parsimony
        A judgement per number; `suggested()` is where more concepts stop paying.
    """
    if not counts or list(counts) != sorted(set(counts)):
        raise InputError(f"counts must rise, got {list(counts)}")
    ((label, item),) = entries([method]).items()
    rows, _, test, head = materials_of(train, test, head, materials)
    if isinstance(item, ConceptMethod):
        fits = [rows.concepts(replace(item, n_concepts=k), head, seed) for k in counts]
    else:
        fits = [rows.concepts(item, head, seed)]
        counts = [round(fits[0].charged)]
    found = [judge(concepts, test, head, companions=False) for concepts in fits]
    return Parsimony(label, tuple(counts), tuple(found))
