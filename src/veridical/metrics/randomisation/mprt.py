"""Model parameter randomisation test: does the map change when the model's weights do?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from veridical.metrics import Count, Direction, Explainer, ExplainerMetric, Key, Outcome, Task, register
from veridical.metrics.randomisation._common import (
    Order,
    Similarity,
    comparable,
    compare,
    layer_curve,
    similarity_by_layer,
    why_not_similar,
)
from veridical.metrics.re_explaining import Explain, explaining, one_session
from veridical.models.context import Context


@dataclass(frozen=True)
class LayerRandomisation(ExplainerMetric):
    """What the tests that walk through layers share: settings, the walk, and how its steps are summed up.

    A layer at which a map has no spread has no similarity and is left out of the mean, flagged. The
    unrandomised model is never part of it. The curve holds every layer's similarity.
    """

    order: Order = "top_down"
    """Which layers go first, "top_down" from the output or "bottom_up"; "independent" takes one at a time."""
    similarity: Similarity = "spearman"
    """How two maps are compared: "spearman", "pearson" or, for images, "ssim"."""
    absolute: bool = False
    """Whether absolute values of the maps are compared."""
    aggregate: Literal["mean", "last"] = "mean"
    """"mean" averages over layers, "last" takes the last step of the walk alone."""
    draws: Count = 1
    """Randomised models per step, over which the score is averaged."""
    category: ClassVar[str] = "randomisation"
    direction: ClassVar[Direction] = Direction.LOWER
    needs: ClassVar[frozenset[str]] = frozenset({"explainer", "weights"})

    def inapplicable_reason(self, task: Task) -> str | None:
        return super().inapplicable_reason(task) or why_not_similar(self.similarity, task)

    def mapping(self, explainer: Explainer, explain: Explain, task: Task, key: Key) -> Explain:
        """How a task is mapped under whatever weights it has: `mapping(task, key of its own)` is (N, V)."""
        return explain

    def evaluate(self, task: Task, explainer: Explainer, context: Context) -> Outcome:
        with one_session(task, explainer), explaining(explainer, context, task) as explain:
            mapped = self.mapping(explainer, explain, task, context.key / "shared")
            clean, table = similarity_by_layer(
                task,
                self.order,
                self.draws,
                context.key,
                mapped,
                lambda maps: comparable(self.similarity, maps, task.space, self.absolute),
                lambda a, b: compare(self.similarity, a, b, task.space),
            )
        compared = table if self.aggregate == "mean" else table[..., -1:]
        return Outcome(
            compared.flatten(1).nanmean(-1),
            layer_flags(clean, compared),
            layer_curve(table, self.order, f"{self.similarity} similarity"),
        )


def layer_flags(clean: Tensor, table: Tensor) -> dict[str, Tensor]:
    """Which samples have layers without a similarity, and why."""
    missing = clean.isnan().any(-1)
    undefined = table.isnan()
    return {
        "no explanation": missing,
        "no layer has a similarity: a map has no spread": undefined.all(-1).all(-1) & ~missing,
        "some layers left out: a map has no spread": undefined.any(-1).any(-1) & ~missing,
    }


@register
@dataclass(frozen=True)
class Mprt(LayerRandomisation):
    """Similarity of the map with those of models randomised layer by layer, mean over layers.

    mean over layers l of corr(e, e_l), e_l explained under weights whose layers from the output down to l
    are drawn afresh (MetaQuantus eq. 20). Lower is better: a map should not survive its model.
    `aggregate="last"` is what the GEF program takes (GEF eq. 30 at the last l).
    """

    name: ClassVar[str] = "mprt"
    summary: ClassVar[str] = "Does the map change when the model's layers are randomised?"
    assumes: ClassVar[str] = "a model of random weights has another explanation"
    misleads: ClassVar[str] = (
        "noise passes: a random map is perfectly dissimilar; and what input and architecture force on "
        "every map (edges, zero borders) counts as similarity"
    )
    paper: ClassVar[str] = "Adebayo et al. 2018; MetaQuantus eq. 20; GEF eq. 30"

    @property
    def inversion_invariant(self) -> bool:
        """Both maps inverted, the correlation of their ranks is the same."""
        return self.similarity == "spearman" and not self.absolute
