"""Does a metric read the explanation at all? Its scores before and after the maps are permuted.

Meta-consistency alone can be won without reading a map: whether the prediction still holds is resilient to
slight noise and reacts to disruption. So MC is never shown without the share of scores that a permuted map
changes. A pinch of the map added to such a score changes all of them, and nothing that matters: so it is
also checked whether permuted maps leave the ranks of the samples alone, and how far they move a score,
compared with how far samples lie apart, disrupted ones among them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass

import torch
from torch import Tensor

from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.explainers import Explainer
from veridical.functional import spearman
from veridical.models.context import Memo
from veridical.values.explanation import Explanation
from veridical.values.task import Task

NEGLIGIBLE = 0.01
"""At most this share of changed scores counts as none."""
SAME_RANKS = 0.95
"""Above this rank correlation, scores of permuted maps say the same about the samples."""
SHORT = 0.05
"""At most this share of the distance between samples is a pinch; metrics that read maps reach 0.2 or more."""
BLIND = "does not depend on the explanation"
HARDLY = "hardly depends on the explanation"
PLACELESS = "reads the values of a map, not their places"
NAN = float("nan")


@dataclass(frozen=True)
class Dependence:
    """What other maps do to the scores of a metric, for one explainer or on average over several."""

    permuted: float = NAN
    """The share of scores that change when maps are permuted."""
    ranks: float = NAN
    """The rank correlation over samples of the scores with those of permuted maps."""
    replaced: float = NAN
    """The share that random maps change; asked only where permuted ones change nothing, as in sparseness."""
    reach: float = NAN
    """How far other maps move a score, over how far two samples lie apart, disrupted ones among them."""

    @classmethod
    def over(cls, each: Mapping[str, Dependence]) -> Dependence:
        """The mean over explainers, of what was asked of them."""
        table = torch.tensor([astuple(one) for one in each.values()], dtype=torch.float64)
        return cls(*table.nanmean(0).tolist()) if each else cls()

    @property
    def blind(self) -> bool:
        """Whether the metric does not depend on the explanation."""
        return bool(self._blind)

    @property
    def remark(self) -> str:
        """What a reader must know, or nothing."""
        return self._blind or (PLACELESS if self.permuted <= NEGLIGIBLE else "")

    @property
    def _blind(self) -> str:
        if self.permuted <= NEGLIGIBLE and not self.replaced > NEGLIGIBLE:
            return BLIND
        if self.reach <= SHORT:
            return f"{HARDLY}: other maps move scores by {self.reach:.2%} of the gap between samples"
        if self.permuted > NEGLIGIBLE and self.ranks > SAME_RANKS:
            return f"{HARDLY}: permuted maps rank samples alike ({self.ranks:.2f})"
        return ""


def dependence(before: Tensor, after: Tensor) -> Dependence:
    """What permuted maps did to scores (N,)."""
    ranks = spearman(before.double(), after.double(), ~(before.isnan() | after.isnan()))
    return Dependence(share_of_changes(before, after), float(ranks))


def reach(before: Tensor, after: Tensor) -> float:
    """The mean distance of scores (N,) from those of other maps, over the mean distance of two samples."""
    known = before.isfinite() & after.isfinite()
    before, after = before[known].double(), after[known].double()
    apart = (before[:, None] - before[None]).abs().mean()
    return float((before - after).abs().mean() / apart) if apart > 0 else NAN


def permuted(maps: Tensor, valid: Tensor | None, key: Key) -> Tensor:
    """Every map with its values dealt anew among its valid features; equal maps are dealt alike.

    Draws are keyed by the map itself: a fixed permutation would leave all distances between maps alone.
    """
    count = maps.shape[1]
    ids = _digests(maps, valid)
    order = keyed.permutation(key, ids, 0, count, valid)
    valid = torch.ones_like(maps, dtype=torch.bool) if valid is None else valid
    # valid features in their own order receive the values of the valid ones in the drawn order
    home = torch.argsort((~valid).to(torch.uint8), dim=1, stable=True)
    return torch.zeros_like(maps).scatter(1, home, maps.gather(1, order)).masked_fill(~valid, 0.0)


def random_maps(maps: Tensor, valid: Tensor | None, key: Key) -> Tensor:
    """Normal values in the place of every map, keyed by itself."""
    ids = _digests(maps, valid)
    drawn = keyed.normal(key, ids, 0, maps.shape[1], maps.dtype)
    return drawn if valid is None else drawn.masked_fill(~valid, 0.0)


def _digests(maps: Tensor, valid: Tensor | None) -> Tensor:
    """An id of each map, without the last digits of its values, which depend on the plan."""
    maps = maps if valid is None else maps.masked_fill(~valid, 0.0)
    largest = maps.abs().amax(1, keepdim=True)
    return keyed.content_ids((maps / largest).round(decimals=5))


def altered(explanation: Explanation, how: str, key: Key) -> Explanation:
    """The explanation with permuted or random maps; a missing map stays missing."""
    alter = permuted if how == "permuted" else random_maps
    present = explanation.values.masked_fill(explanation.missing[:, None], 0.0)
    made = alter(present, explanation.valid, key)
    return explanation.with_values(made.masked_fill(explanation.missing[:, None], torch.nan))


def standing_in(inner: Explainer, explain: Callable[[Task, Key, Memo | None], Explanation]) -> Explainer:
    """An explainer that is `inner` in everything a metric may ask of it, but gives what `explain` does."""

    def call(self: Explainer, task: Task, key: Key = Key(0), memo: Memo | None = None) -> Explanation:  # noqa: B008 (frozen)
        return explain(task, key, memo)

    kind = type(inner)
    own = {"__call__": call, "__module__": kind.__module__, "__doc__": kind.__doc__}
    other: Explainer = object.__new__(type(kind.__name__, (kind,), own))
    other.__dict__.update(inner.__dict__)
    return other


def altering(inner: Explainer, how: str) -> Explainer:
    """An explainer whose maps are permuted, or replaced by random ones, each by its own draw."""
    return standing_in(inner, lambda task, key, memo: altered(inner(task, key, memo), how, key / how))


def share_of_changes(before: Tensor, after: Tensor) -> float:
    """The share of scores that differ by more than rounding, among those with a value on either side."""
    either = ~(before.isnan() & after.isnan())
    scale = torch.maximum(before.abs(), after.abs()).nan_to_num(0.0)
    moved = ~((before - after).abs() <= 1e-6 * scale) & either
    return float(moved.sum() / either.sum()) if bool(either.any()) else float("nan")
