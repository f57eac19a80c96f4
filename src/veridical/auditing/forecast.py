"""What an audit evaluates, known before it does: rows by stage and method, seconds and memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from veridical.auditing import near_data
from veridical.auditing.effort import Effort
from veridical.auditing.model_randomisation import COPIES, MAPS, SCORES
from veridical.auditing.posthoc_checks import COPY_SAMPLES
from veridical.core.key import Key
from veridical.data.diagnosis import BACKWARD, seconds_per_row
from veridical.errors import VeridicalError
from veridical.explainers import Explainer
from veridical.explainers import registry as explainer_registry
from veridical.explainers.controls import Random
from veridical.meta.damage import reference_for
from veridical.metrics import Metric
from veridical.models.context import Memo
from veridical.models.cost import Cost
from veridical.models.plan import memory_budget
from veridical.perturb.mask_bank import MASKS
from veridical.perturb.subset_table import has_few
from veridical.values.task import Task

if TYPE_CHECKING:
    import pandas as pd

    from veridical.auditing.elimination import Elimination


class CostEstimate(NamedTuple):
    """Rows per sample that the scores of maps evaluate, by what those of two random maps did."""

    score: float
    """Rows of a further map."""
    shared: float = 0.0
    """Rows that all maps share: evaluated once."""
    most: float = math.inf
    """The subsets of a sample, where it has few features: maps then share ever more of them."""
    effects: float = 0.0
    """Rows of the measured effects, of few features all subsets."""

    def of(self, scores: float, maps_rows: float) -> float:
        """Rows per sample of the scores of so many maps, which evaluate `maps_rows` themselves."""
        if self.most == math.inf:
            return scores * self.score + bool(scores) * self.shared + maps_rows
        first = self.score + self.shared
        # each map meets a part of the subsets in reach, of which those before it have seen some
        reach = min(self.most, first * first / self.shared) if self.shared else self.most
        return min(reach * (1 - (1 - first / reach) ** scores) + maps_rows, self.most) if reach else maps_rows

    def own(self, scores: float, maps_rows: float) -> float:
        """The same on the audited model, with the measured effects."""
        found = self.of(scores, maps_rows)
        return max(found, self.effects) if self.most < math.inf else found + self.effects


def typical_sample(task: Task) -> Task:
    """A sample that has rather many features: three in four have no more."""
    order = task.space.counts(len(task)).argsort(stable=True)
    return task[order[(3 * len(order)) // 4].reshape(1).to(task.device)]


def cost_of_map(explainer: Explainer, one: Task, seed: int) -> Cost:
    """What one map evaluates: as our own methods declare, else counted; nothing where it fails.

    What fails is recorded when it is carried out.
    """
    try:
        if explainer.name in explainer_registry:
            return explainer._declared(one)
        return explainer(one.changed(), Key(seed)).cost
    except Exception:
        return Cost()


def cost_of_scores(
    metrics: Mapping[str, Metric], task: Task, seed: int, maps: Mapping[str, Explainer] | None = None
) -> CostEstimate:
    """What the scores of one map evaluate per sample, counted on two random maps of one sample.

    Given who makes `maps`, with what the measured effects evaluate: KernelSHAP reads the same masks.
    """
    one, memo, found = typical_sample(task).changed(alone=True), Memo(), [0, 0]
    for draw in range(2):
        made = Random()(one, Key(seed) / draw)
        for metric in metrics.values():
            try:
                cost = metric(one, made, Key(seed), memo).cost
            except Exception:  # it fails again where that is recorded
                continue
            found[draw] += cost.forward + cost.backward
    few, shared = has_few(task, task.fill), max(0, found[0] - found[1])
    repeats = task.fill.repeats_on(task)
    if few is None or not bool(few.all()):
        read = maps is None or any(one.name == "kernel_shap" for one in maps.values())
        return CostEstimate(found[1], shared, effects=0.0 if read else MASKS * repeats)
    most = float((2.0 ** task.space.counts(len(task))).mean()) * repeats
    return CostEstimate(found[1], shared, most, 0.0 if maps is None else most)


RANDOMISED = "model randomisation"


class Line(NamedTuple):
    """One stage of an audit for one method, or for all of them together."""

    stage: str
    method: str
    """Empty where a stage serves all methods."""
    forward: float
    backward: float
    models: int
    """Models that are held at once."""


@dataclass(frozen=True, eq=False, repr=False)
class Forecast:
    """What an audit would evaluate if every method stayed open to the end; prints it as a table.

    Attributes
    ----------
    lines : tuple of Line
        Rows forward and backward by stage and method.
    samples : int
        Distinct samples that would be explained.
    seconds_per_row : float
        How long this machine took for a row, measured on a few.
    why_none : str
        Why there would be no verdict, and what would suffice; empty otherwise.
    notes : tuple of str
        Who does not fit the budget, and what is not in the table.
    """

    title: str
    lines: tuple[Line, ...]
    samples: int
    seconds_per_row: float
    model_mib: float
    chunk_mib: float
    why_none: str = ""
    notes: tuple[str, ...] = ()

    @property
    def cost(self) -> Cost:
        """Rows in all."""
        forward = round(sum(line.forward for line in self.lines))
        return Cost(forward, round(sum(line.backward for line in self.lines)), forward)

    @property
    def seconds(self) -> float:
        """About how long they take."""
        return self.seconds_per_row * (self.cost.forward + BACKWARD * self.cost.backward)

    def to_frame(self) -> pd.DataFrame:
        """Put the forecast in a table.

        Returns
        -------
        pandas.DataFrame
            One row per stage and method: rows forward and backward, seconds, and MiB held at once.
        """
        import pandas as pd

        rows: list[dict[str, Any]] = [
            {
                "stage": line.stage,
                "method": line.method,
                "forward": round(line.forward),
                "backward": round(line.backward),
                "seconds": self.seconds_per_row * (line.forward + BACKWARD * line.backward),
                "mib": self.chunk_mib + line.models * self.model_mib,
            }
            for line in self.lines
        ]
        return pd.DataFrame(rows, columns=["stage", "method", "forward", "backward", "seconds", "mib"])

    def __repr__(self) -> str:
        if self.why_none:
            return f"{self.title}: no verdict, since {self.why_none}."
        table = self.to_frame().round({"seconds": 1, "mib": 0}).to_string(index=False)
        words = f"at most {self.cost.forward:,} rows forward and {self.cost.backward:,} backward"
        return "\n".join([f"{self.title}: {words}, about {self.seconds:,.0f} s.", table, *self.notes])


def forecast(
    elimination: Elimination, effort: Effort, title: str, why_none: str, finetuned_on: int, checked: int
) -> Forecast:
    """What this elimination would evaluate if every method that starts stayed open to the end.

    `finetuned_on` is on how many rows a model would be fine-tuned, if masks disturb it; `checked` is how many
    the checks of the model evaluate.
    """
    task, estimate = elimination.task, elimination.estimate
    count, few = len(task), elimination.steps[0][1]
    methods = list(elimination.candidates.values())
    draws = sum(control.count for control in elimination.controls.values())
    reference, lines = _reference_map(task), list[Line]()

    def add(stage: str, method: str, samples: float, each: Cost | float, models: int = 2) -> None:
        forward, backward = (each.forward, each.backward) if isinstance(each, Cost) else (each, 0)
        if samples * (forward + backward):
            lines.append(Line(stage, method, samples * forward, samples * backward, models))

    add("scores", "shared by all", count, estimate.shared)
    add("scores", "controls", count * draws, estimate.score)
    add("measured effects", "", count, estimate.effects)
    # planted damage: none, shares of permuted features, half noise, negated
    add("planted damage", "", few, reference.forward + (3 + len(effort.damage)) * estimate.score)
    for one in methods:
        add("maps", one.label, count, one.cost)
        add("scores", one.label, count, estimate.score)
        add("maps of other samples", one.label, count, estimate.score)
        if elimination.randomised:
            add(f"{RANDOMISED}: maps", one.label, MAPS * count, one.cost, 2 + COPIES)
            add(f"{RANDOMISED}: scores", one.label, SCORES * count, estimate.score, 2 + COPIES)
            add("nearly the same weights", one.label, min(few, COPY_SAMPLES), one.cost, 3)
    if elimination.randomised:
        add(f"{RANDOMISED}: scores", "size of the input", count, estimate.score, 2 + COPIES)
    if estimate.most < math.inf:  # each subset is evaluated once for each model: the lines share those
        maps, many = sum(one.cost.forward for one in methods if not one.cost.backward), len(methods)
        own = estimate.own(draws + 2 * many, maps)
        lines = _scaled(lines, few * min(estimate.most, reference.forward + own) + (count - few) * own, False)
        lines = _scaled(lines, count * estimate.of(SCORES * many + 1, MAPS * maps), True)
    add("checks of the model", "", 1, checked)
    add("near data", "", min(count, near_data.SAMPLES), near_data.rows_per_sample(task))
    trained = effort.training_epochs * finetuned_on
    add("fine-tuning, if masks disturb the model", "", trained, Cost(1, 1), 3)
    notes = [f"{name}: {why}." for name, why in elimination.left_out.items()]
    if effort.describe:
        notes.append("What describes and decides nothing is not in this table.")
    return Forecast(
        title,
        () if why_none else tuple(lines),
        count,
        seconds_per_row(task),
        sum(p.numel() * p.element_size() for p in task.model.parameters()) / 2**20,
        float(task.predictor.plan.budget_mib or memory_budget(task.device)),
        why_none,
        tuple(notes),
    )


def _reference_map(task: Task) -> Cost:
    """What a map on which damage is planted evaluates."""
    try:
        return explainer_registry.make(reference_for(task))._declared(typical_sample(task))
    except VeridicalError:  # no damage can be planted, and there is no verdict
        return Cost()


def _scaled(lines: Sequence[Line], total: float, copies: bool) -> list[Line]:
    """The lines of the model or of its copies, those by masks scaled to a total."""
    here = [line.stage.startswith(RANDOMISED) == copies and not line.backward for line in lines]
    share = total / max(1.0, sum(line.forward for line, one in zip(lines, here, strict=True) if one))
    return [
        line._replace(forward=share * line.forward) if one else line
        for line, one in zip(lines, here, strict=True)
    ]
