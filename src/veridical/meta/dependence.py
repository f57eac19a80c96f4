"""Does a metric read the explanation at all? Its scores before and after the maps are permuted.

Meta-consistency alone can be won without reading a map: whether the prediction still holds is resilient to
slight noise and reacts to disruption. So MC is never shown without the share of scores that a permuted map
changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from veridical.explainers import Explainer
from veridical.random import keyed
from veridical.random.keyed import Key
from veridical.values.explanation import Explanation
from veridical.values.task import Task

NEGLIGIBLE = 0.01
"""At most this share of changed scores counts as none."""
BLIND = "does not depend on the explanation"
PLACELESS = "reads the values of a map, not their places"


@dataclass(frozen=True)
class Dependence:
    """The shares of scores that change when maps are permuted, and when random ones take their place.

    The second is asked only where the first is negligible: sparseness, say, is the same for a permuted map.
    """

    permuted: float
    replaced: float = float("nan")

    @property
    def blind(self) -> bool:
        """Whether the metric does not depend on the explanation."""
        return self.permuted <= NEGLIGIBLE and not self.replaced > NEGLIGIBLE

    @property
    def remark(self) -> str:
        """What a reader must know, or nothing."""
        if self.blind:
            return BLIND
        return PLACELESS if self.permuted <= NEGLIGIBLE else ""


def permuted(maps: Tensor, valid: Tensor | None, key: Key) -> Tensor:
    """Every map with its values dealt anew among its valid features; equal maps are dealt alike.

    Draws are keyed by the map's own bits: a fixed permutation would leave all distances between maps alone.
    """
    count = maps.shape[1]
    ids = keyed.content_ids(maps if valid is None else maps.masked_fill(~valid, 0.0))
    order = keyed.permutation(key, ids, 0, count, valid)
    if valid is None:
        return maps.gather(1, order)
    # valid features in their own order receive the values of the valid ones in the drawn order
    home = torch.argsort((~valid).to(torch.uint8), dim=1, stable=True)
    return torch.zeros_like(maps).scatter(1, home, maps.gather(1, order)).masked_fill(~valid, 0.0)


def random_maps(maps: Tensor, valid: Tensor | None, key: Key) -> Tensor:
    """Normal values in the place of every map, keyed by its bits."""
    ids = keyed.content_ids(maps if valid is None else maps.masked_fill(~valid, 0.0))
    drawn = keyed.normal(key, ids, 0, maps.shape[1], maps.dtype)
    return drawn if valid is None else drawn.masked_fill(~valid, 0.0)


def altered(explanation: Explanation, how: str, key: Key) -> Explanation:
    """The explanation with permuted or random maps; a missing map stays missing."""
    alter = permuted if how == "permuted" else random_maps
    present = explanation.values.masked_fill(explanation.missing[:, None], 0.0)
    made = alter(present, explanation.valid, key)
    return explanation.with_values(made.masked_fill(explanation.missing[:, None], torch.nan))


@dataclass(frozen=True)
class Altered(Explainer):
    """An explainer whose maps are permuted, or replaced by random ones, each by its own draw."""

    inner: Explainer
    how: str = "permuted"
    name: ClassVar[str] = "altered"

    def __getattribute__(self, name: str) -> Any:
        # to a metric it is the explainer it stands for, in all that is asked before it explains
        if name in FACTS:
            return getattr(object.__getattribute__(self, "inner"), name)
        return object.__getattribute__(self, name)

    def __call__(self, task: Task, key: Key = Key(0)) -> Explanation:  # noqa: B008 (frozen)
        return altered(self.inner(task, key), self.how, key / self.how)


FACTS = frozenset(
    {
        "name",
        "needs",
        "modalities",
        "stochastic",
        "control",
        "one_key",
        "draws_on",
        "rows_per_sample",
        "space_of",
        "why_not",
        "check",
        "to_json",
        "prepared",
    }
)


def share_of_changes(before: Tensor, after: Tensor) -> float:
    """The share of scores that differ by more than rounding, among those with a value on either side."""
    either = ~(before.isnan() & after.isnan())
    scale = torch.maximum(before.abs(), after.abs()).nan_to_num(0.0)
    moved = ~((before - after).abs() <= 1e-6 * scale) & either
    return float(moved.sum() / either.sum()) if bool(either.any()) else float("nan")
