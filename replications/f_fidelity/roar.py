"""ROAR, the honest baseline: retrain without what an explainer finds relevant, and see what is lost."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from veridical.api import as_explanation
from veridical.core.allowed import Between, Count, Positive
from veridical.core.key import Key
from veridical.core.progress import track
from veridical.errors import InputError
from veridical.explainers.base import Explainer
from veridical.explainers.transforms import degrade
from veridical.fidelity.correctness import (
    Reference,
    correctness_of,
    refuse_chance,
    studied_maps,
    with_reference_targets,
)
from veridical.fidelity.falls import mean_over_sizes
from veridical.fidelity.finetuning import why_no_finetuning
from veridical.fidelity.ranking import RATIOS, RankingStudy, summarised
from veridical.fidelity.removal import SIGNS, Sign, check_levels, explanation_sizes
from veridical.fidelity.training import Schedule, fit, head_loss
from veridical.fidelity.training_rows import Rows, training_rows
from veridical.metrics.base import ExplainerMetric, Outcome
from veridical.models.context import Context
from veridical.models.cost import Cost
from veridical.models.randomised_layers import randomised
from veridical.models.weights import layers
from veridical.perturb.probe import probe
from veridical.perturb.rules import Given
from veridical.perturb.subset_table import predicted
from veridical.values.explanation import Explanation
from veridical.values.scores import Curve, Direction
from veridical.values.task import Task
from veridical.values.ties import TieOrders

log = logging.getLogger("veridical")
ROAR_SIZES = (0.1, 0.3, 0.5, 0.7, 0.9)


@dataclass(frozen=True)
class Retraining:
    """How each of ROAR's models is trained: from fresh weights (as ROAR does) or on from the model's own."""

    epochs: int = 20
    rate: float = 1e-3
    batch: int = 64
    patience: int = 5
    start: Literal["fresh", "trained"] = "fresh"


@dataclass(frozen=True, eq=False)
class Retrained:
    """What a run of ROAR found: falls (N, sizes) as indicator and probability, and what it cost."""

    indicator: Tensor
    probability: Tensor
    retrainings: int
    rows_trained: int


def train_task(task: Task) -> Task:
    """The task over its training rows, explained for their labels (or the model's own answers)."""
    rows = training_rows(task)
    return rows.task(task, torch.arange(len(rows.inputs), device=task.device))


def retrain(
    task: Task,
    explanation: Explanation,
    of_training: Explanation,
    truth: Tensor,
    *,
    sign: Sign,
    levels: Sequence[float] = ROAR_SIZES,
    how: Retraining = Retraining(),  # noqa: B008 (frozen)
    key: Key = Key(0),  # noqa: B008 (frozen)
    progress: bool | None = None,
) -> Retrained:
    """One retraining per size, without the s strongest features (plus) or without all others (minus)."""
    gaps = int(of_training.missing.sum())
    if gaps:
        raise InputError(
            f"the explainer gave no map for {gaps} of the {len(of_training)} training rows, and retraining "
            "needs one for each"
        )
    explanation, of_training = (one_ranking(each, key) for each in (explanation, of_training))
    rows = training_rows(task)
    whole = torch.cat([task.probabilities(task.outputs), predicted(task, task.outputs)], -1)[:, None]
    clean, chance = correctness_of(whole, truth, task)
    parts: tuple[list[Tensor], list[Tensor]] = ([], [])
    trained = 0
    for place, level in enumerate(track(list(levels), f"ROAR {sign}", progress)):
        removed = part_removed(of_training, level, sign)
        every = torch.arange(len(rows.inputs), device=task.device)
        masked = replace(rows, inputs=rows.without(removed, every, key / "fill"))
        model, cost = _trained(task, masked, how, key / sign / place)
        task.predictor.meter.add(cost)
        trained += cost.backward
        judge = task.with_module(model)
        rule = Given(part_removed(explanation, level, sign)[:, None])
        answers = probe(judge, rule, key=key, all_outputs=True, predictions=True)
        for kept, before, after in zip(
            parts, (clean, chance), correctness_of(answers, truth, task), strict=True
        ):
            kept.append(before - after)
    indicator, probability = (torch.cat(kept, 1) for kept in parts)
    return Retrained(indicator, probability, len(tuple(levels)), trained)


def one_ranking(explanation: Explanation, key: Key) -> Explanation:
    """A map along one of the rankings that agree with it, drawn for each row: a retraining has one order."""
    return TieOrders.of(explanation).at_most(1).strict(0, key)


def part_removed(explanation: Explanation, level: float, sign: Sign) -> Tensor:
    """(N, V): the s strongest features, or all the others."""
    n = explanation.space.counts(len(explanation)).to(explanation.values.device)
    size = explanation_sizes(n, [level])
    ranks = explanation.descending_ranks
    return ranks < size if sign == "plus" else (ranks >= size) & (ranks < n[:, None])


def _trained(task: Task, rows: Rows, how: Retraining, key: Key) -> tuple[nn.Module, Cost]:
    model = task.predictor.source.copied()
    if how.start == "fresh":
        fresh = randomised(model, layers(model), key / "fresh")
        model.load_state_dict({**model.state_dict(), **fresh})
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._NormBase):
                module.reset_running_stats()
    schedule = Schedule(0.5, how.epochs, how.batch, how.rate, 0.1, how.patience, False, key.state % 2**31)
    state = fit(
        model,
        task.predictor.output,
        rows,
        schedule,
        head_loss(task.head),
        lambda parameters: torch.optim.Adam(parameters, lr=how.rate),
        False,
    )
    return model.eval(), state.cost


@dataclass(frozen=True)
class ROAR(ExplainerMetric):
    """The fall of the right answer after retraining without the explanation (plus) or with only it (minus).

    Needs the training rows and explains all of them; one retraining per size and sign. `details` holds both
    variants, the provenance the number of retrainings and trained rows. It is not registered by name, since
    whoever asks for all metrics hardly means to retrain: `vd.register(ROAR)` does it.
    """

    sign: Sign = "plus"
    """"plus" removes the explanation, "minus" all but the explanation."""
    sizes: tuple[Between, ...] = ROAR_SIZES
    """Shares of the features that count as the explanation; one retraining for each."""
    epochs: Count = 20
    """Passes over the training rows per retraining, at most."""
    rate: Positive = 1e-3
    """Learning rate."""
    batch: Count = 64
    """Training rows per step."""
    start: Literal["fresh", "trained"] = "fresh"
    """Where retraining begins: from "fresh" weights, or from those "trained" already."""
    variant: Literal["indicator", "probability"] = "indicator"
    """What falls: whether the answer is right ("indicator") or its "probability"."""
    reference: Reference | None = None
    """What a right answer is: "label" or the model's own "prediction"; None is the label where there is
    one."""
    name: ClassVar[str] = "roar_plus"
    category: ClassVar[str] = "faithfulness"
    summary: ClassVar[str] = "How much is lost after retraining without what is called relevant?"
    assumes: ClassVar[str] = "a retrained model needs what the original needed"
    misleads: ClassVar[str] = "where the pattern of removed features itself tells the class"
    paper: ClassVar[str] = "Hooker et al. 2019"

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", tuple(float(size) for size in self.sizes))
        check_levels(self.sizes)
        object.__setattr__(self, "name", f"roar_{self.sign}")

    @property
    def better(self) -> Direction:
        return Direction.HIGHER if self.sign == "plus" else Direction.LOWER

    def inapplicable_reason(self, task: Task) -> str | None:
        return super().inapplicable_reason(task) or why_no_finetuning(task)

    def evaluate(self, task: Task, explainer: Explainer, context: Context) -> Outcome:
        judged, truth = with_reference_targets(task, self.reference)
        explanation, of_training = explainer(judged, context.key), explainer(train_task(task), context.key)
        missing = explanation.missing
        how = Retraining(self.epochs, self.rate, self.batch, start=self.start)
        found = retrain(
            task, explanation, of_training, truth, sign=self.sign, levels=self.sizes, how=how, key=context.key
        )
        log.info("ROAR: %d retrainings of %d rows in all", found.retrainings, found.rows_trained)
        falls = found.indicator if self.variant == "indicator" else found.probability
        sizes = torch.tensor(self.sizes, dtype=torch.float64)
        label = f"fall of the right answer ({self.variant}), {self.sign}"
        return Outcome(
            mean_over_sizes(falls).masked_fill(missing, torch.nan),
            {"no explanation": missing},
            curve=Curve(sizes, falls, "explanation size (share of features)", label),
            details={"indicator": found.indicator, "probability": found.probability},
            notes={
                "retrainings": found.retrainings,
                "rows trained": found.rows_trained,
                "training rows explained": len(of_training),
            },
        )


def roar_study(
    task: Task,
    explainer: Any,
    roar: ROAR,
    *,
    ratios: Sequence[float] = RATIOS,
    repeats: int = 1,
    variant: Literal["indicator", "probability"] = "indicator",
    reference: Reference | None = None,
    seed: int = 0,
    progress: bool | None = None,
) -> RankingStudy:
    """The ranking study of ROAR, which retrains for every ratio, repeat, size and sign (Tables 1-7).

    `notes` holds its cost: retrainings, rows trained, training rows explained; these are explained once.
    """
    if isinstance(explainer, Explanation | Tensor):
        raise InputError("ROAR explains the training rows: give an explainer, not finished maps")
    refuse_chance(task, reference)
    key = Key(seed) / "ranking"
    about = studied_maps(task, explainer, reference, seed)
    learnt = as_explanation(explainer, train_task(about.task), seed)
    how = Retraining(roar.epochs, roar.rate, roar.batch, start=roar.start)
    falls: list[list[Tensor]] = [[] for _ in SIGNS]
    cost = {"retrainings": 0, "rows trained": 0, "training rows explained": len(learnt)}
    for repeat in range(repeats):
        for sign, kept in zip(SIGNS, falls, strict=True):
            row: list[Tensor] = []
            for ratio in ratios:
                if ratio == 0 and repeat:
                    row.append(kept[0][0])
                    continue
                found = retrain(
                    about.task,
                    degrade(about.maps, ratio, key, repeat),
                    degrade(learnt, ratio, key, repeat),
                    about.truth,
                    sign=sign,
                    levels=roar.sizes,
                    how=how,
                    key=key / "roar",
                    progress=progress,
                )
                cost["retrainings"] += found.retrainings
                cost["rows trained"] += found.rows_trained
                row.append(found.indicator if variant == "indicator" else found.probability)
            kept.append(torch.stack(row))
    notes = {"variant": variant, "repeats": repeats, **cost, "remarks": about.notes}
    found = torch.stack([torch.stack(kept) for kept in falls])
    return summarised(
        {"ROAR": found}, {"ROAR": roar.sizes}, tuple(ratios), about.maps.explainer, len(about.task), notes
    )
