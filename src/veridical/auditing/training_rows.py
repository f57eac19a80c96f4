"""An audit of training-row relevance: do the rows it names change the answer when they are left out?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
from torch import Tensor

from veridical.auditing.evidence import MIN_SAMPLES, SHOWN
from veridical.auditing.grade import Grade, grade
from veridical.core.allowed import Between, Within
from veridical.core.settings import checked
from veridical.data.retraining import Retraining
from veridical.errors import InputError
from veridical.explainers.training_rows import similarity
from veridical.functional import confidence_sequence, settle, spearman, units_to_settle
from veridical.plots import COLOURS, axes

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

REFERENCE = "a linear model of measured outputs"
"""What the grade compares with: ridge regression of outputs on the units kept, on other retrainings."""
CHANCE, LIKENESS = "chance", "likeness of the inputs"
HARDLY = 0.1
"""A share of pairs this much smaller or larger than that of the control is hardly a difference."""


@dataclass(frozen=True)
class RowsPlace:
    """One method: how well it orders retrainings, how much it shows of what can be shown, and its word."""

    explainer: str
    status: str
    """"trusted", "refuted", "adds nothing shown" or "not decided"."""
    ordered: float
    """The share of pairs of retrainings that it puts in the order of their outputs, averaged over tests."""
    low: float
    high: float
    """The 99% interval of `ordered`, valid after every retraining."""
    lds: float
    """Its mean linear datamodelling score."""
    grade: Grade
    rivals: Mapping[str, int]
    """1 where it is shown to order more pairs than this rival, -1 fewer, 0 open."""
    needed: int | None
    """Retrainings that would settle an open question four times in five; None for over 2,000 or none open."""


@dataclass(frozen=True, eq=False)
class RowsAudit:
    """The words of `audit_training_rows`; prints them."""

    places: tuple[RowsPlace, ...]
    retrainings: int
    tests: int
    maps: Mapping[str, Tensor]

    def __getitem__(self, explainer: str) -> RowsPlace:
        return next(place for place in self.places if place.explainer == explainer)

    @property
    def best(self) -> str | None:
        """The trusted method of the highest score, or None."""
        trusted = [place for place in self.places if place.status == "trusted"]
        return max(trusted, key=lambda place: place.lds).explainer if trusted else None

    def to_frame(self) -> pd.DataFrame:
        """One row per method, best first."""
        import pandas as pd

        rows = []
        for place in self.places:
            row = {name: value for name, value in vars(place).items() if name not in ("grade", "rivals")}
            row |= {f"grade: {name}": getattr(place.grade, name) for name in ("value", "low", "high")}
            rows.append(row | {"reason": reason(place)})
        return pd.DataFrame(rows)

    def __repr__(self) -> str:
        head = (
            f"Use {self.best} to say which training rows made an answer: of those that are trusted it orders "
            "retrainings best."
            if self.best
            else "No method is shown to tell which training rows made an answer."
        )
        lines = [f"{head} {self.retrainings} retrainings, {self.tests} tests."]
        return "\n".join([*lines, *(f"{p.explainer}: {p.status}. {reason(p)}" for p in self.places)])

    def plot(
        self, explainer: str | None = None, test: int = 0, count: int = 10, ax: Axes | None = None
    ) -> Axes:
        """Draw the units that mattered most to one test: those that support its answer, and those against."""
        who = explainer or self.best or self.places[0].explainer
        values = self.maps[who][test]
        order = values.abs().argsort(descending=True, stable=True)[:count].flip(0)
        ax = axes(ax, 4.2, 0.6 + 0.26 * len(order))
        colours = [COLOURS[0] if value > 0 else COLOURS[1] for value in values[order].tolist()]
        ax.barh([f"row {i}" for i in order.tolist()], values[order].tolist(), color=colours)
        ax.axvline(0.0, color="0.4", linewidth=0.8)
        ax.set_xlabel("expected fall of the output without it")
        ax.set_title(f"test {test}: the training rows that mattered most ({who})", fontsize=9)
        return ax


def reason(place: RowsPlace) -> str:
    """Why a method has its word, in one sentence."""
    said = f"It orders {place.ordered:.0%} [{place.low:.0%}, {place.high:.0%}] of the pairs of retrainings"
    shows = (
        f"; shows {place.grade} of what measured outputs show"
        if place.grade.value == place.grade.value
        else ""
    )
    if place.status == "trusted":
        return f"{said}{shows}."
    lost = [rival for rival, side in place.rivals.items() if side < 0]
    if lost:
        return f"{said}: fewer than {' and '.join(lost)}."
    if place.status == "adds nothing shown":
        return f"{said}: hardly more or fewer than {LIKENESS} does."
    still = " and ".join(rival for rival, side in place.rivals.items() if not side)
    enough = f"about {place.needed:,}" if place.needed else "more than 2,000"
    return f"{said}; against {still} it is open, and {enough} retrainings would decide it."


@checked
def audit_training_rows(
    rows: Retraining,
    maps: Mapping[str, Any],
    retrainings: Annotated[int, Within(2 * MIN_SAMPLES, 10**6)] = 160,
    share: Between = 0.5,
    reference: Annotated[int, Within(0, 10**6)] | None = None,
    likeness: Any = None,
) -> RowsAudit:
    """Audit relevance of training rows: is it about what this training did with them?

    Random subsets of the rows are trained on, two by two. A map orders a pair rightly in a test if the subset
    with more kept relevance gives the higher output; the unit of evidence is the share of tests ordered
    rightly, and pairs are independent. A method is trusted if it is shown at 1% to order more than half of
    them, and more than a control that reads the inputs alone (likeness, where classes tell which sign).

    Parameters
    ----------
    rows : Retraining
        Training rows as features, with the tests.
    maps : mapping
        Relevance (tests, rows) by the name of its method.
    retrainings : int
        How many subsets are trained on.
    share : float
        Share of the units that each keeps.
    reference : int, optional
        Further retrainings on which the reference of the grade is fitted; as many by default, 0 for no grade.
    likeness : array, optional
        The control that knows no model; by default `similarity` of the inputs, where rows and tests are
        given with classes.

    Returns
    -------
    RowsAudit
        A word, a grade and a reason per method.

    Raises
    ------
    InputError
        Where no map is given, or one holds numbers that are not finite.
    """
    named = {name: rows.maps(values) for name, values in maps.items()}
    if not named:
        raise InputError("give maps={'name': relevance}, relevance of shape (tests, training rows)")
    for name, values in named.items():
        if not bool(values.isfinite().all()):
            raise InputError(f"the map of {name} contains NaN or infinite numbers")
    rivals = {} if (control := _likeness(rows, likeness)) is None else {LIKENESS: control}
    kept = rows.subsets(retrainings - retrainings % 2, share)
    answers = rows.answers(kept)
    scored = {name: _units(values, kept, answers) for name, values in {**named, **rivals}.items()}
    lds = {name: spearman(values @ kept.T.double(), answers.T) for name, values in named.items()}
    wanted = len(kept) if reference is None else reference
    top = _reference(rows, wanted, share, kept, answers) if wanted else None
    places = [_place(name, scored[name], scored.get(LIKENESS), lds[name], top) for name in named]
    places.sort(key=lambda place: (place.status != "trusted", -np.nan_to_num(place.lds, nan=-2.0)))
    return RowsAudit(tuple(places), len(kept), answers.shape[1], named)


def _units(relevance: Tensor, kept: Tensor, answers: Tensor) -> Tensor:
    """The share of tests (P,) in which each pair of retrainings is put in the order of its outputs."""
    sums = kept.double() @ relevance.T
    sums = torch.where(sums.abs() <= 1e-12 * relevance.abs().sum(1), 0.0, sums)
    more, higher = ((x[0::2] - x[1::2]).sign() for x in (sums, answers))
    return ((1 + more * higher) / 2).mean(1)


def _place(name: str, units: Tensor, control: Tensor | None, lds: Tensor, top: Tensor | None) -> RowsPlace:
    tests = {CHANCE: units}
    if control is not None:
        tests[LIKENESS] = (1 + units - control) / 2
    together = torch.stack(list(tests.values()))
    sides = dict(zip(tests, settle(together, SHOWN, SHOWN / len(tests)).side.tolist(), strict=True))
    low, high = confidence_sequence(together, 0.99)
    word, needed = "not decided", None
    if all(side > 0 for side in sides.values()):
        word = "trusted"
    elif any(side < 0 for side in sides.values()):
        word = "refuted"
    elif sides[CHANCE] > 0 and max(0.5 - float(low[-1]), float(high[-1]) - 0.5) <= HARDLY / 2:
        word = "adds nothing shown"
    else:
        pairs = units_to_settle(together, SHOWN, SHOWN / len(tests))
        needed = None if pairs is None else 2 * pairs
    # relevance that is noise scores 0 in expectation
    nothing = Grade(math.nan, math.nan, math.nan, REFERENCE)
    shows = nothing if top is None else grade(lds, torch.zeros_like(lds), top, name=REFERENCE)
    ends = (float(units.mean()), float(low[0]), float(high[0]))
    return RowsPlace(name, word, *ends, float(lds.nanmean()), shows, sides, needed)


def _reference(rows: Retraining, count: int, share: float, kept: Tensor, answers: Tensor) -> Tensor:
    """The score (T,) of ridge regression of outputs on kept units, fitted on other retrainings."""
    from sklearn.linear_model import RidgeCV

    others = rows.subsets(count, share, "reference")
    fitted = RidgeCV(np.logspace(-3, 4, 15)).fit(others.double().numpy(), rows.answers(others).numpy())
    coefficients = torch.from_numpy(np.atleast_2d(fitted.coef_))
    return spearman(coefficients @ kept.T.double(), answers.T)


def _likeness(rows: Retraining, given: Any) -> Tensor | None:
    """The map of the control that reads inputs alone; None where there are no classes to give it a sign."""
    if given is not None:
        return rows.maps(given)
    inputs, labels, tests = rows.train_inputs, rows.train_labels, rows.test_inputs
    if inputs is None or labels is None or tests is None or rows.head == "regression":
        return None
    return rows.maps(similarity((inputs, labels), (tests, rows.targets)))
