"""What every metric is: settings, a statement of what it measures and needs, and one number per sample."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from veridical.core.key import Key
from veridical.core.registry import Registry
from veridical.core.settings import Settings
from veridical.errors import NotApplicableError, ShapeError
from veridical.explainers.base import MODALITIES, Explainer
from veridical.explainers.diagnostics import ConstantMaps
from veridical.models.context import Context, Memo
from veridical.models.cost import Cost
from veridical.models.output_heads import UNSTEADY, Response
from veridical.perturb.fills import Backgrounds, Fill
from veridical.perturb.probe import probe
from veridical.perturb.rules import MaskRule
from veridical.values.explanation import Explanation
from veridical.values.scores import Curve, Direction, Scores
from veridical.values.task import Task
from veridical.values.ties import TieOrders

CONSTANT = "constant map: it tells no feature from another"
"""The flag of maps that rank nothing, under every metric and whatever number they get."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a metric computes: a value per sample and, where it has them, flags, a curve and details."""

    values: Tensor
    flags: Mapping[str, Tensor] = field(default_factory=dict)
    curve: Curve | None = None
    details: Mapping[str, Tensor] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)
    """Plain data that joins the provenance, such as the calibration a score rests on."""


@dataclass(frozen=True)
class AnyMetric(Settings):
    """What map metrics and explainer metrics share: the facts of their card."""

    category: ClassVar[str] = ""
    direction: ClassVar[Direction] = Direction.HIGHER
    summary: ClassVar[str] = ""
    """What it measures, as a question in one line."""
    assumes: ClassVar[str] = ""
    misleads: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    modalities: ClassVar[frozenset[str]] = MODALITIES
    needs: ClassVar[frozenset[str]] = frozenset()
    """Among "masks", "explainer", "gradient", "layer", "weights", "train"."""
    ranks_only: ClassVar[bool] = False
    """Whether it reads a map's ranking alone, so that monotone rescaling changes nothing."""
    takes_classes: ClassVar[bool] = False
    """Whether it scores explanations of whole classes, where a sample has no input of its own."""
    permutation_invariant: ClassVar[bool] = False
    """Whether permuting a map's values changes nothing, so that its inverse scores the same."""

    @property
    def better(self) -> Direction:
        """Which way is better with these settings; `direction` is that of the defaults."""
        return self.direction

    def inapplicable_reason(self, task: Task) -> str | None:
        """Why this metric cannot work on the task, or None if it can."""
        if task.members is not None and not self.takes_classes:
            return "the samples of this task are classes, which have no input to evaluate the model on"
        if task.modality not in self.modalities:
            return f"it works on {', '.join(sorted(self.modalities))}, this task is {task.modality}"
        if "masks" in self.needs and task.masks is None:
            return "it compares maps with object masks; give the task masks=..."
        if "gradient" in self.needs and not task.predictor.differentiable:
            return "it needs gradients and the model is not a torch function"
        if "weights" in self.needs and not any(
            p.is_floating_point() for p in task.predictor.source.module.parameters()
        ):
            return "it changes the weights and the model has none that torch can see"
        if "train" in self.needs and task.train is None:
            return "it needs reference rows; give the task train=..."
        return None

    def check(self, task: Task) -> None:
        """Raise, naming the metrics that do apply, if this one does not."""
        reason = self.inapplicable_reason(task)
        if reason is not None:
            raise NotApplicableError(
                f"metric '{self.name}' does not apply here: {reason}. These do: {', '.join(applicable(task))}"
            )

    def _scores(
        self,
        task: Task,
        outcome: Outcome,
        who: str,
        key: Key,
        context: Context,
        extra: Any,
    ) -> Scores:
        samples = len(task.inputs)
        if outcome.values.shape != (samples,):
            raise ShapeError(
                f"metric '{self.name}' gave values of shape {tuple(outcome.values.shape)}, "
                f"expected one per sample ({samples},)"
            )
        provenance = {
            "metric": self.to_json(),
            "explainer": extra.to_json() if isinstance(extra, Settings) else extra,
            "seed": key.seed,
            "plan": asdict(task.predictor.plan),
            "halvings": context.halvings,
            "device": str(task.inputs.device),
            "fill": task.fill.to_json(),
            "torch": torch.__version__,
            **outcome.notes,
        }
        curve = outcome.curve
        if task.head == "generation" and curve is not None:
            model = task.predictor.source.module
            asks = getattr(getattr(model, "module", model), "asks", "log-probability")
            scale = r"\b(?:probability|logit|indicator)\b"
            curve = replace(curve, y_label=re.sub(scale, asks, curve.y_label))
        scores = Scores(
            outcome.values,
            self.better,
            self.name,
            task.ids,
            who,
            outcome.flags,
            curve,
            outcome.details,
            context.cost,
            provenance,
        )
        if not task.moves:
            return scores
        return replace(scores, flags={**scores.flags, UNSTEADY: torch.ones_like(task.ids, dtype=torch.bool)})


TIED_PAIRS = "tied pairs"
"""The detail that says which share of its pairs of features a map does not rank."""
Ties = Literal["average", "stable"]


@dataclass(frozen=True)
class Metric(AnyMetric):
    """Scores a map: `(task, explanation, key) -> Scores`. A subclass writes `evaluate`.

    Draws are keyed by the metric and the sample, not by the explainer, so that all maps meet the same ones.

    Where a metric says `ranks_only`, `evaluate` is given maps without ties: a map with tied features is
    scored by the mean over the rankings that agree with it, all where there are at most 8, else 8 keyed
    draws, and flagged where they decide the score.
    """

    averages_ties: ClassVar[bool | None] = None
    """Whether tied maps are scored by the rankings that agree with them: None where `ranks_only` says so,
    True for a metric that reads order and values, False for one that gives ties their due itself."""
    ties: ClassVar[Ties] = "average"

    def evaluate(self, task: Task, explanation: Explanation, context: Context) -> Outcome:
        """One value per sample for maps that are finite and belong to the task."""
        raise NotApplicableError(f"metric '{self.name}' does not say how it evaluates")

    @property
    def over_orders(self) -> bool:
        """Whether tied maps are scored by the rankings that agree with them."""
        return self.ranks_only if self.averages_ties is None else self.averages_ties

    def evaluate_with_ties(self, task: Task, explanation: Explanation, context: Context) -> Outcome:
        """What `evaluate` says; of maps with ties the mean over the rankings that agree with them."""
        if not self.over_orders:
            return self.evaluate(task, explanation, context)
        if explanation.has_ties:
            from veridical.metrics.tie_orders import over_orders

            orders = self.tie_orders(task, explanation, context.key)
            return over_orders(
                lambda part, ranked, _: self.evaluate(part, ranked, context), task, orders, context.key
            )
        found = self.evaluate(task, explanation, context)
        none = torch.zeros_like(found.values, dtype=torch.float64)
        return replace(found, details={**found.details, TIED_PAIRS: none})

    def tie_orders(self, task: Task, explanation: Explanation, key: Key) -> TieOrders:
        """The rankings over which a tied map is averaged.

        A metric for which the order of some ties cannot matter leaves these out: `orders.where(...)`.
        """
        if self.ties == "stable" or not explanation.has_ties:
            return TieOrders.none(explanation)
        # rankings that differ in features equal to their fill are one
        fill, matters = self.fill_on(task), None
        if fill is not None and not fill.looks_at_mask:
            matters = Backgrounds(task, fill, key).matters()
        return TieOrders.of(explanation, matters)

    def fill_on(self, task: Task) -> Fill | None:
        """What takes the place of removed features; None if the metric removes nothing."""
        return getattr(self, "fill", None) or task.fill

    def responses(self, task: Task, rule: MaskRule, context: Context, kept: Hashable = None) -> Tensor:
        """Responses (N, 1 + M) to the inputs as they are, and without what each mask of a rule removes.

        They are read by the metric's own `response` (a probability unless it says otherwise) and `fill_on`.

        Parameters
        ----------
        task : Task
            The task to evaluate.
        rule : MaskRule
            Which features each of M masks removes.
        context : Context
            The call this is a part of.
        kept : hashable, optional
            What decides the masks of a sample, where no map does: the call then evaluates them once.
        """
        response: Response = getattr(self, "response", "probability")
        fill, key, memo = self.fill_on(task), context.key, context.memo
        return probe(task, rule, response=response, fill=fill, key=key, with_clean=True, memo=memo, kept=kept)

    def __call__(
        self,
        task: Task,
        explanation: Explanation,
        key: Key = Key(0),  # noqa: B008 (frozen)
        memo: Memo | None = None,
    ) -> Scores:
        """Score every sample; with `memo` as a part of a larger call."""
        context = Context.begun(task.predictor, key / self.name, memo)
        self.check(task)
        explanation = explanation.matching(task)
        missing = None if explanation.whole else explanation.missing
        if missing is not None:
            zeros = explanation.values.masked_fill(missing[:, None], 0.0)
            explanation = replace(explanation, values=zeros)
        outcome = self.evaluate_with_ties(task, explanation, context)
        outcome = replace(outcome, flags={CONSTANT: ~explanation.spread, **outcome.flags})
        if missing is not None:
            values = outcome.values.double().masked_fill(missing, torch.nan)
            # what the stand-in map was flagged for is not the sample's doing
            flags = {reason: flag & ~missing for reason, flag in outcome.flags.items()}
            outcome = replace(outcome, values=values, flags={**flags, "no explanation": missing})
        made_by = explanation.provenance.get("explainer", explanation.explainer)
        return self._scores(task, outcome, explanation.explainer, key, context, made_by)


@dataclass(frozen=True)
class RankingMetric(Metric):
    """A metric that reads a map's order and can break ties by position, as published programs do."""

    ties: Ties = field(default="average", kw_only=True)  # type: ignore[misc]  # here it is a setting
    """How tied features are ranked: averaged over the rankings that agree, or by position."""
    averages_ties: ClassVar[bool | None] = True
    version: ClassVar[int] = 2


@dataclass(frozen=True)
class ExplainerMetric(AnyMetric):
    """Scores a method: `(task, explainer, key) -> Scores`; it may explain again under noise."""

    keyed_as: ClassVar[str] = ""
    """The name that keys its draws, where that is another metric's: both then meet the same ones."""

    def evaluate(self, task: Task, explainer: Explainer, context: Context) -> Outcome:
        """One value per sample."""
        raise NotApplicableError(f"metric '{self.name}' does not say how it evaluates")

    def __call__(
        self,
        task: Task,
        explainer: Explainer,
        key: Key = Key(0),  # noqa: B008 (frozen)
        memo: Memo | None = None,
    ) -> Scores:
        """Score every sample; with `memo` as a part of a larger call."""
        first = ConstantMaps(task)
        own = key / (self.keyed_as or self.name)
        context = replace(Context.begun(task.predictor, own, memo), notice=first.notice)
        self.check(task)
        explainer.check(task)
        outcome = self.evaluate(task, explainer, context)
        outcome = replace(outcome, flags={CONSTANT: first.flags, **outcome.flags})
        return self._scores(task, outcome, explainer.name, key, context, explainer)

    @property
    def shares_work(self) -> bool:
        """Whether several methods scored together cost less than one by one."""
        return type(self).score_all is not ExplainerMetric.score_all

    def basis(self, task: Task, key: Key) -> Cost:
        """Rows that every single score rests on and `score_all` counts for none, such as a noise path's."""
        return Cost()

    def score_all(
        self,
        task: Task,
        explainers: Mapping[str, Explainer],
        key: Key = Key(0),  # noqa: B008 (frozen)
        memo: Memo | None = None,
    ) -> dict[str, Scores | Exception]:
        """The scores of several methods, or what a method raised; a metric may share work between them."""
        out: dict[str, Scores | Exception] = {}
        memo = memo or Memo()
        for who, explainer in explainers.items():
            try:
                out[who] = self(task, explainer, key, memo)
            except Exception as error:
                out[who] = error
        return out


registry: Registry[AnyMetric] = Registry(
    "metric",
    "veridical.metrics",
    homes=("veridical.metrics", "veridical.gef", "veridical.qge", "veridical.fidelity"),
)


def register(cls: type[Any]) -> type[Any]:
    """Class decorator: make a metric known by its name."""
    registry.add(cls.name, cls)
    return cls


def applicable(task: Task) -> list[str]:
    """The names of all registered metrics that work on this task."""
    return [name for name in registry if registry.make(name).inapplicable_reason(task) is None]
