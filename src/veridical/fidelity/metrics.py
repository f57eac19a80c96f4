"""Fid, RFid and FFid: how far the right answer falls when a part of the ranking is removed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from veridical.core.allowed import Between, Count, PartOf
from veridical.core.facts import fact
from veridical.core.key import Key
from veridical.errors import InputError
from veridical.fidelity.artefact import Finetuned
from veridical.fidelity.correctness import Reference, reference_labels
from veridical.fidelity.falls import Falls, mean_over_sizes, measure
from veridical.fidelity.finetuning import finetune, why_no_finetuning
from veridical.fidelity.removal import Sign, check_levels
from veridical.metrics.base import TIED_PAIRS, Outcome, RankingMetric, register
from veridical.metrics.tie_orders import TIE_VARIANCE, TIES_DECIDE, ties_decide
from veridical.models.context import Context, Memo
from veridical.values.explanation import Explanation
from veridical.values.scores import Curve, Direction
from veridical.values.task import Task

LEVELS = tuple(percent / 100 for percent in range(5, 100, 5))
OTHER_CLASS = "explained for another class than the one judged: use task.with_targets(task.labels)"
NOTHING_REMOVED = "some sizes remove nothing and are left out"
OTHERWISE = "the fine-tuned model answers this whole input otherwise than the model"
NO_SIZE = "no size removes anything"
NO_FALL = (
    "no size changes the answer, neither class nor probability: the model needs none of what was removed"
)
SAME_CLASS = "no size changes the class, though the probability moves: see variant='probability'"
Variant = Literal["indicator", "probability"]


@dataclass(frozen=True, eq=False)
class Fidelity(RankingMetric):
    """What the fidelity metrics share: sizes, sign, the right answer, and the artefact they may stand on.

    Each is known by two names: `fid_plus` is `Fid()`, `fid_minus` is `Fid("minus")`.

    The value of a sample is the mean over sizes; `details` holds both variants and `curve` the chosen one
    over sizes.
    """

    sign: Sign = "plus"
    """"plus" removes the explanation, "minus" all but the explanation."""
    sizes: tuple[Between, ...] = LEVELS
    """Shares of the features that count as the explanation."""
    variant: Variant = "indicator"
    """What falls: whether the answer is right ("indicator") or its "probability"."""
    reference: Reference | None = None
    """What a right answer is: "label" or the model's own "prediction"; None is the label where there is
    one."""
    finetuned: Finetuned | None = None
    """The model that sees masked inputs; None is the task's own, or for FFid one fine-tuned on demand."""
    family: ClassVar[str] = "fid"
    version: ClassVar[int] = 2
    category: ClassVar[str] = "faithfulness"
    ranks_only: ClassVar[bool] = True
    paper: ClassVar[str] = "Zheng et al. 2025 (F-Fidelity)"
    assumes: ClassVar[str] = "the model can judge inputs with the removed share of features missing"

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", tuple(float(size) for size in self.sizes))
        check_levels(self.sizes)
        # RFid(sign="minus") is the metric registered as rfid_minus
        object.__setattr__(self, "name", f"{self.family}_{self.sign}")

    def __eq__(self, other: object) -> bool:
        # RFid("minus") and what its name makes, RFidMinus(), are one metric
        return isinstance(other, Fidelity) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(repr(self.to_json()))

    @property
    def better(self) -> Direction:
        return Direction.HIGHER if self.sign == "plus" else Direction.LOWER

    @property
    def removal(self) -> Mapping[str, Any]:
        """How much of a part is removed: alpha, beta, draws and the way of drawing."""
        return {"alpha": 1.0, "beta": None, "draws": 1, "bernoulli": False}

    def inapplicable_reason(self, task: Task) -> str | None:
        reason = super().inapplicable_reason(task)
        if reason is None and self.finetuned is not None:
            reason = self.finetuned.held_out.inapplicable_reason
        return reason

    def artefact(self, task: Task) -> Finetuned | None:
        """The fine-tuned model that stands in for the original, if one does."""
        return self.finetuned

    def model_task(self, task: Task) -> Task:
        """The task on the model that sees masked inputs: the fine-tuned one where there is one."""
        artefact = self.artefact(task)
        return task if artefact is None else artefact.evaluator(task)

    def evaluate_with_ties(self, task: Task, explanation: Explanation, context: Context) -> Outcome:
        # `measure` gives ties their due
        return self.evaluate(task, explanation, context)

    def falls(
        self,
        task: Task,
        explanation: Explanation,
        truth: Tensor,
        signs: Sequence[Sign],
        key: Key,
        memo: Memo | None = None,
    ) -> Mapping[Sign, Falls]:
        """The falls over sizes of these signs, both variants, in one pass."""
        if self.ties == "stable":
            explanation = explanation.strictly_along(explanation.order)
        evaluator = self.model_task(task)
        return measure(
            evaluator, explanation, truth, levels=self.sizes, signs=signs, key=key, memo=memo, **self.removal
        )

    def evaluate(self, task: Task, explanation: Explanation, context: Context) -> Outcome:
        # both signs and all fidelity metrics meet the same draws
        key, truth = context.key.parent / "fidelity", reference_labels(task, self.reference)
        falls = self.falls(task, explanation, truth, (self.sign,), key, context.memo)[self.sign]
        chosen = falls.variant(self.variant)
        values = mean_over_sizes(chosen)
        flags = {
            NO_SIZE: (none := chosen.isnan().all(-1)),
            NOTHING_REMOVED: ((falls.counts < 1) & falls.once).any(-1) & ~none,
        }
        if task.head in ("multiclass", "binary"):
            flags[OTHER_CLASS] = truth != explanation.targets.to(task.device)
        still, steady = (~each.nan_to_num().any(-1) for each in (chosen, falls.probability))
        flags[NO_FALL], flags[SAME_CLASS] = still & steady & ~none, still & ~steady & ~none
        artefact, judged = self.artefact(task), "prediction" if task.labels is None else "label"
        notes: dict[str, Any] = {"right answer": self.reference or judged}
        if artefact is not None:
            notes["finetuned"] = artefact.summary(task)
            flags[OTHERWISE] = artefact.disagrees(task)
            flags |= {flag: torch.ones_like(none) for flag in artefact.held_out.flags}
        sizes = torch.tensor(falls.levels, dtype=torch.float64)
        details = {
            "indicator": falls.indicator,
            "probability": falls.probability,
            TIED_PAIRS: explanation.tied_pairs,
        }
        variance = falls.variance[0 if self.variant == "indicator" else 1]
        if bool((falls.orders > 1).any()):
            details[TIE_VARIANCE] = variance / falls.orders
            flags[TIES_DECIDE] = ties_decide(values, variance)
        label = f"fall of the right answer ({self.variant}), {self.sign}"
        curve = Curve(sizes, chosen, "explanation size (share of features)", label)
        return Outcome(values, flags, curve, details, notes)


@register
@dataclass(frozen=True, eq=False)
class Fid(Fidelity):
    """The fall of the right answer when the whole explanation (plus), or all the rest (minus), is removed.

    Fid+ = 1(y = f(x)) - 1(y = f(x without its s strongest features)), Fid- keeps only those (eq. 1-2). With
    `finetuned` the fine-tuned model is evaluated: the ablation "Fid with fine-tuning" of appendix D.7.
    """

    name: ClassVar[str] = "fid_plus"
    summary: ClassVar[str] = "Does the right answer fall when the explanation is removed whole?"
    misleads: ClassVar[str] = "where masked inputs lie outside what the model has learnt"


@register
@dataclass(frozen=True, eq=False)
class RFid(Fidelity):
    """Fid with a random part of the explanation (or of the rest) removed, over `draws` draws (eq. 3-4).

    floor(alpha * s) of the s strongest features, or ceil(alpha * (n - s)) of the others, drawn without
    replacement.
    """

    alpha: PartOf = 0.5
    """Share of the explanation (or of the rest) that is removed."""
    alpha_minus: PartOf | None = None
    """Share of the rest that is removed, where it is another one."""
    draws: Count = 50
    """Random parts drawn per sample and size."""
    bernoulli: bool = False
    """Whether each feature is removed with probability `alpha`, instead of a fixed number of them."""
    family: ClassVar[str] = "rfid"
    name: ClassVar[str] = "rfid_plus"
    version: ClassVar[int] = 5
    summary: ClassVar[str] = "Does the right answer fall when random parts of the explanation are removed?"
    misleads: ClassVar[str] = "where even slightly masked inputs lie outside what the model has learnt"

    @property
    def removal(self) -> Mapping[str, Any]:
        rest = self.alpha if self.alpha_minus is None else self.alpha_minus
        share = {"plus": self.alpha, "minus": rest}
        return {"alpha": share, "beta": None, "draws": self.draws, "bernoulli": self.bernoulli}


@register
@dataclass(frozen=True, eq=False)
class FFid(RFid):
    """RFid on a model fine-tuned under random masks, never removing more than it has learnt to miss (eq. 6).

    At most B = max(1, floor(beta * n)) features are removed. `finetuned` is the artefact of
    `fidelity.finetune`, made with the same beta, fill and space; without it the metric fine-tunes on the
    task's training rows, once: the artefact is kept on disk and serves every explainer.
    """

    beta: PartOf = 0.1
    """Largest share of the features that is ever removed."""
    family: ClassVar[str] = "ffid"
    name: ClassVar[str] = "ffid_plus"
    summary: ClassVar[str] = "RFid on a model that has learnt to miss features, within what it has learnt"
    misleads: ClassVar[str] = "where masking hardly hurts the model: plain Fid tells more there"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.finetuned is not None and abs(self.finetuned.beta - self.beta) > 1e-12:
            raise InputError(
                f"the model was fine-tuned with beta {self.finetuned.beta:g} and is to be evaluated with "
                f"beta {self.beta:g}; give FFid(finetuned=..., beta={self.finetuned.beta:g}), or fine-tune "
                "again"
            )

    @property
    def removal(self) -> Mapping[str, Any]:
        return {**super().removal, "beta": self.beta}

    def inapplicable_reason(self, task: Task) -> str | None:
        return super().inapplicable_reason(task) or (
            why_no_finetuning(task) if self.finetuned is None else None
        )

    def artefact(self, task: Task) -> Finetuned:
        """The fine-tuned model: the given one, or one made (or found) with the default settings."""
        if self.finetuned is not None:
            return self.finetuned
        return _finetuned_at(task, self.beta)


@fact
def _finetuned_at(task: Task, beta: float) -> Finetuned:
    return finetune(task, beta=beta)


@register
@dataclass(frozen=True, eq=False)
class FidMinus(Fid):
    """Fid-: all but the explanation is removed; lower is better."""

    sign: Sign = "minus"
    """"minus": all but the explanation is removed."""
    name: ClassVar[str] = "fid_minus"
    direction: ClassVar[Direction] = Direction.LOWER
    summary: ClassVar[str] = "Does the right answer stay when only the explanation is kept?"


@register
@dataclass(frozen=True, eq=False)
class RFidMinus(RFid):
    """RFid-: random parts of all but the explanation are removed; lower is better."""

    sign: Sign = "minus"
    """"minus": all but the explanation is removed."""
    name: ClassVar[str] = "rfid_minus"
    direction: ClassVar[Direction] = Direction.LOWER
    summary: ClassVar[str] = "Does the right answer stay when random parts of the rest are removed?"


@register
@dataclass(frozen=True, eq=False)
class FFidMinus(FFid):
    """FFid-: RFid- on the fine-tuned model with capped counts; lower is better."""

    sign: Sign = "minus"
    """"minus": all but the explanation is removed."""
    name: ClassVar[str] = "ffid_minus"
    direction: ClassVar[Direction] = Direction.LOWER
    summary: ClassVar[str] = "RFid- on a model that has learnt to miss features, within what it has learnt"
