"""Explanations changed on purpose: binarised, degraded, inverted, shuffled; as functions and as explainers.

A wrapped explainer gets the key it would get alone, so the map underneath is the one it gives by
itself; what a transform draws has a key of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from veridical.core import key as keyed
from veridical.core.allowed import Count, Index, Share
from veridical.core.key import Key
from veridical.core.settings import taken_from
from veridical.core.space import Space
from veridical.errors import InputError
from veridical.explainers.base import Explainer, as_explainer, registry
from veridical.explainers.gradients import Gradient
from veridical.functional import positions
from veridical.models.context import Context, Memo
from veridical.values.explanation import Explanation
from veridical.values.task import Task

# --- functions on explanations --------------------------------------------------------------------------


Degradation = Literal["permuted", "noise"]


def top_k(explanation: Explanation, k: int, absolute: bool = False) -> Explanation:
    """Set the k most relevant features of each sample to 1, the others to 0 (L-INTG-10 and the like, GEF).

    Parameters
    ----------
    explanation : Explanation
        The maps.
    k : int
        How many features are 1; a sample with fewer features has 1 in all.
    absolute : bool
        Whether features are ranked by magnitude.

    Returns
    -------
    Explanation
        The binary maps; a sample that could not be explained stays NaN.

    Raises
    ------
    InputError
        If k is below 1.
    """
    if k < 1:
        raise InputError(f"k counts features and is at least 1, got {k}")
    ranked = explanation.with_values(explanation.values.abs()) if absolute else explanation
    chosen = ranked.descending_ranks < k
    if explanation.valid is not None:
        chosen = chosen & explanation.valid
    values = chosen.to(explanation.values.dtype)
    values = values.masked_fill(explanation.values.isnan().all(-1, keepdim=True), torch.nan)
    return explanation.with_values(values, f"top {k} of {explanation.explainer}")


def degrade(
    explanation: Explanation, ratio: float, key: Key, repeat: int = 0, how: Degradation = "permuted"
) -> Explanation:
    """Make maps worse by a known amount (F-Fidelity's ranking study).

    "permuted" permutes the scores of a share of the features among themselves. One keyed order of the n
    features a (sample, repeat) serves all ratios: ratio r permutes the scores of its first round(r * n), so
    what a larger ratio touches includes what a smaller one did. "noise" is
    `(1 - r) * map / rms(map) + r * standard normal noise`, where the noise is the same for all ratios.

    Parameters
    ----------
    explanation : Explanation
        The maps.
    ratio : float
        Share of the features, or of the noise, from 0 to 1.
    key : Key
        Decides the draw.
    repeat : int
        Which of the independent draws to take.
    how : {"permuted", "noise"}
        What is done to the maps.

    Returns
    -------
    Explanation
        The degraded maps.

    Raises
    ------
    InputError
        If the ratio is not between 0 and 1.
    """
    if not 0 <= ratio <= 1:
        raise InputError(f"a ratio lies between 0 and 1, got {ratio}")
    size = explanation.space.n_features
    name = f"{explanation.explainer} degraded by {ratio:g}"
    if how == "noise":
        whole = explanation.normalised().values.double()
        noise = keyed.normal(key / "noise", explanation.draw_ids, repeat, size, whole.dtype)
        mixed = (1 - ratio) * whole + ratio * noise
        if explanation.valid is not None:
            mixed = mixed.masked_fill(~explanation.valid, 0.0)
        return explanation if not ratio else explanation.with_values(mixed, name)
    counts = explanation.space.counts(len(explanation)).to(explanation.values.device)
    touched = torch.floor(ratio * counts.double() + 0.5 + 1e-9).to(torch.int64)
    order = keyed.permutation(key / "positions", explanation.draw_ids, repeat, size, explanation.valid)
    first = torch.arange(size, device=order.device)[None] < touched[:, None]
    mixed = keyed.permutation(key / "scores", explanation.draw_ids, repeat, size, first)
    sources = torch.empty_like(order).scatter_(-1, order, order.gather(-1, mixed))
    return _moved(explanation, sources, name)


def shuffle(explanation: Explanation, key: Key) -> Explanation:
    """Permute all scores among the features of each sample.

    Parameters
    ----------
    explanation : Explanation
        The maps.
    key : Key
        Decides the draw.

    Returns
    -------
    Explanation
        The same scores in other places.
    """
    return replace(degrade(explanation, 1.0, key), explainer=f"shuffled {explanation.explainer}")


def _moved(explanation: Explanation, sources: Tensor, name: str) -> Explanation:
    """Give feature i the score of feature sources[i], and its place in the ranking, so ties move along."""
    values = explanation.values.gather(-1, sources)
    order = positions(explanation.ranks.gather(-1, sources))
    return replace(explanation, values=values, given_order=order, given_tied=explanation.tied, explainer=name)


# --- explainers -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Transform(Explainer):
    """Base of explainers that change what another explainer gives, and are otherwise like it."""

    explainer: Explainer = Gradient()  # noqa: RUF009 (frozen)
    """The explainer whose maps are changed; a name or a function will do."""
    kind: ClassVar[str] = ""
    modalities: ClassVar[Any] = taken_from("explainer", "modalities")
    needs: ClassVar[Any] = taken_from("explainer", "needs")
    stochastic: ClassVar[Any] = taken_from("explainer", "stochastic")
    control: ClassVar[Any] = taken_from("explainer", "control")
    one_model: ClassVar[Any] = taken_from("explainer", "one_model")
    paper: ClassVar[Any] = taken_from("explainer", "paper")

    def __post_init__(self) -> None:
        # names and functions are welcome where an explainer is
        object.__setattr__(self, "explainer", as_explainer(self.explainer))

    def transform(self, explanation: Explanation, key: Key) -> Explanation:
        """The changed explanation; a transform that draws uses the key."""
        return explanation

    def __call__(
        self,
        task: Task,
        key: Key = Key(0),  # noqa: B008 (frozen)
        memo: Memo | None = None,
    ) -> Explanation:
        made = self.explainer(task, key, memo)
        changed = self.transform(made, key / self.kind)
        provenance = {**made.provenance, "explainer": self.to_json()}
        return replace(changed, explainer=self.name, provenance=provenance)

    def attribute(self, task: Task, context: Context) -> Tensor:
        return self(task, context.key, context.memo).values

    def inapplicable_reason(self, task: Task) -> str | None:
        return self.explainer.inapplicable_reason(task)

    def rows_per_sample(self, task: Task) -> int:
        return self.explainer.rows_per_sample(task)

    def _space_of(self, task: Task) -> Space:
        return self.explainer._space_of(task)

    def _prepared(self, task: Task) -> Task:
        return self.explainer._prepared(task)

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.kind} {self.explainer.name}"

    @property
    def summary(self) -> str:  # type: ignore[override]
        return f"{self.kind}: {self.explainer.summary}"

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {"name": self.kind, "version": self.version}
        settings = {field.name: getattr(self, field.name) for field in fields(self)}
        return out | settings | {"explainer": self.explainer.to_json()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        inner = data["explainer"]
        if isinstance(inner, dict):
            inner = explainer_from_json(inner)
        return super().from_json({**data, "explainer": inner})


def explainer_from_json(data: dict[str, Any]) -> Explainer:
    """The explainer, wrapped or not, that `to_json` described."""
    wrappers = {cls.kind: cls for cls in (TopK, Degraded, Inverted, Shuffled, OtherClass)}
    maker: Any = wrappers[data["name"]] if data["name"] in wrappers else registry.maker(data["name"])
    made: Explainer = maker.from_json(data)
    return made


@dataclass(frozen=True)
class TopK(Transform):
    """Another explainer's k most relevant features as 1, the others as 0."""

    k: Count = 5
    """Features that are 1."""
    absolute: bool = False
    """Whether features are ranked by absolute value."""
    kind: ClassVar[str] = "top_k"

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"top {self.k} of {self.explainer.name}"

    def transform(self, explanation: Explanation, key: Key) -> Explanation:
        return top_k(explanation, self.k, self.absolute)


@dataclass(frozen=True)
class Degraded(Transform):
    """Another explainer's map with a share of its scores permuted among themselves; see `degrade`."""

    ratio: Share = 1.0
    """Share of the scores that is permuted, from 0 to 1."""
    repeat: Index = 0
    """Which of the independent draws to take, counted from 0."""
    how: Degradation = "permuted"
    """What is done: scores are "permuted", or mixed with "noise"."""
    kind: ClassVar[str] = "degraded"

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.explainer.name} degraded by {self.ratio:g}"

    @property
    def stochastic(self) -> bool:  # type: ignore[override]
        return self.ratio > 0 or self.explainer.stochastic

    def transform(self, explanation: Explanation, key: Key) -> Explanation:
        return degrade(explanation, self.ratio, key, self.repeat, self.how)


@dataclass(frozen=True)
class Inverted(Transform):
    """Another explainer's map with its ranking reversed (QGE eq. 4)."""

    negated: bool = False
    """Whether values are negated, instead of assigned anew along the reversed ranking."""
    kind: ClassVar[str] = "inverse"

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"inverse of {self.explainer.name}"

    def transform(self, explanation: Explanation, key: Key) -> Explanation:
        return explanation.inverted(self.negated)


@dataclass(frozen=True)
class Shuffled(Transform):
    """A control: another explainer's scores, each at the place of a random feature."""

    # `control` stays the wrapped one's: it does read the model, whose scores it only puts elsewhere
    kind: ClassVar[str] = "shuffled"

    @property
    def stochastic(self) -> bool:  # type: ignore[override]
        return True

    def transform(self, explanation: Explanation, key: Key) -> Explanation:
        return shuffle(explanation, key)


@dataclass(frozen=True)
class OtherClass(Transform):
    """Another explainer's map of the strongest other output, shown as that of the explained one."""

    kind: ClassVar[str] = "other_class"

    def inapplicable_reason(self, task: Task) -> str | None:
        if task.n_outputs < 2:
            return "the model has one output, and so no other class"
        return super().inapplicable_reason(task)

    def __call__(
        self,
        task: Task,
        key: Key = Key(0),  # noqa: B008 (frozen)
        memo: Memo | None = None,
    ) -> Explanation:
        self.check(task)
        others = task.outputs.scatter(1, task.targets[:, None], -torch.inf).argmax(1)
        made = super().__call__(task.with_targets(others), key, memo)
        return replace(made, targets=task.targets)


registry.add_prefix("inverse", Inverted)
registry.add_prefix("other_class", OtherClass)
registry.add_prefix("shuffled", Shuffled)
