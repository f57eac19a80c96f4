"""Methods made worse on purpose, for metrics that ask a method for maps of their own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from veridical.core import key as keyed
from veridical.core.allowed import Share
from veridical.core.key import Key
from veridical.explainers.transforms import Transform
from veridical.meta.damage import BLENDS, LEVELS, PERMUTED, damaged_maps
from veridical.values.explanation import Explanation

KEY = Key(0) / "damaged methods"


@dataclass(frozen=True)
class Damaged(Transform):
    """An explainer whose every map is damaged; equal maps are damaged alike, others by draws of their own.

    One fixed permutation for all maps would leave every distance between them as it was, and metrics that
    compare maps with each other would be asked nothing.
    """

    damage: str = PERMUTED
    """What is done to a map: "permuted", "blended" with noise, or "negated"."""
    share: Share = 1.0
    """How much of it is done: a share that `planted_damage` plants as well."""
    kind: ClassVar[str] = "damaged"

    def transform(self, explanation: Explanation, key: Key) -> Explanation:
        absent = explanation.missing[:, None]
        if explanation.valid is not None:
            absent = absent | ~explanation.valid
        content = keyed.content_ids(explanation.values.masked_fill(absent, 0.0))
        steps = damaged_maps(replace(explanation, ids=content, draw_ids=content), LEVELS, BLENDS, KEY)
        made = next(s.maps for s in steps if (s.kind, s.share) == (self.damage, self.share))
        return replace(made, ids=explanation.ids, draw_ids=explanation.draw_ids)
