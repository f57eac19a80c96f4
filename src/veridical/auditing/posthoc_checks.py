"""Post-hoc checks of methods that pass every test: is a map about its sample, and about these weights?"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from veridical.auditing.evidence import ALPHA, Rules, Test, of_head
from veridical.auditing.jobs import Job
from veridical.auditing.model_randomisation import sample_scores
from veridical.core.key import Key
from veridical.errors import VeridicalError
from veridical.explainers import as_explainer
from veridical.functional import has_spread, pearson
from veridical.models.cost import Cost
from veridical.models.other_models import noisy
from veridical.values.explanation import Explanation
from veridical.values.task import Task

if TYPE_CHECKING:
    from veridical.auditing.elimination import Candidate, Elimination


ANOTHER_SAMPLE = "its map of another sample of the class"
PAIRS = 12
"""Samples that share their class with another, below which nothing is tested."""
ALIKE = 0.99
"""The correlation from which on maps are the same."""
NEARLY_ALIKE = 0.95
"""The correlation between samples of a class from which on the verdict mentions it."""
COPY_NOISE = 1e-3
"""By how much the weights of the copy differ, relatively; registered methods agree to .99 and more."""
COPY_SAMPLES = 4
COPY_MOVES = 0.05
"""By how much outputs of the copy may move, relative to the largest, for it to be nearly the same model."""
MIN_AGREEMENT = 0.95
"""The agreement below which maps of the two differ."""
YARDSTICKS = ("gradient", "occlusion")
"""Maps that show whether the model itself treats samples alike: a linear model has one gradient."""


@dataclass(frozen=True)
class PosthocChecks:
    """What came of it, for one method."""

    refused: str = ""
    """Why it is not trusted although it passes every test, if so."""
    alike: float = math.nan
    """How alike its maps of two samples of one class are: the median correlation."""
    sample: Test | None = None
    """Its maps against those of another sample of the class, where that was tested."""
    perturbed_copy: float = math.nan
    """How alike its maps are to those of nearly the same model: the median agreement."""
    again: float = math.nan
    """How alike they are when the same model is explained again, where those of the copy are not."""

    @property
    def conclusive(self) -> bool:
        """Whether more samples would not change that it is refused."""
        return bool(self.refused) and (self.perturbed_copy < MIN_AGREEMENT or self.alike > ALIKE)


def likeness(first: Tensor, other: Tensor, where: Tensor | None = None) -> Tensor:
    """The correlation of maps (N,): 1 for two without spread, 0 for one without and one with."""
    flat = ~has_spread(first, where) & ~has_spread(other, where)
    r = pearson(first.double(), other.double(), where)
    return torch.where(flat, 1.0, r.nan_to_num(0.0))


def agreement(first: Tensor, other: Tensor, where: Tensor | None = None) -> Tensor:
    """The correlation of maps (N,), or 1 less their relative difference where that is more.

    Maps that are nearly flat do not correlate, and are nearly the same.
    """
    a, b = (maps.double() if where is None else maps.double() * where for maps in (first, other))
    apart = (a - b).norm(dim=-1) / a.norm(dim=-1).clamp(min=1e-300)
    return torch.maximum(likeness(first, other, where), 1 - apart)


def same_target(task: Task) -> tuple[Tensor, Tensor]:
    """Samples that share their class with another, and for each the next one of its class.

    None where features of one sample are not those of another, such as words of texts or segments of photos,
    nor where there are fewer than three: two values always correlate with 1 or -1.
    """
    rows = torch.arange(len(task), device=task.device)
    unlike = task.space.valid is not None or task.space.per_sample or task.space.n_features < 3
    if task.head == "generation" or unlike:
        return rows[:0], rows[:0]
    groups = [(task.targets == target).nonzero()[:, 0] for target in task.targets.unique()]
    pairs = [(group, group.roll(-1)) for group in groups if len(group) > 1]
    if not pairs:
        return rows[:0], rows[:0]
    own, other = (torch.cat(some) for some in zip(*pairs, strict=True))
    order = own.argsort()
    return own[order], other[order]


def exchanged(made: Explanation, rows: Tensor, others: Tensor) -> Explanation:
    """The maps of other samples of the class in the place of the samples' own."""
    own = made.take(rows.to(made.ids.device))
    return replace(own.with_values(made.values[others.to(made.ids.device)]), cost=Cost())


def class_likeness(made: Explanation, rows: Tensor, others: Tensor) -> float:
    """How alike maps of samples of one class are: the median correlation; NaN where there are none."""
    values = made.values
    rows, others = rows.to(values.device), others.to(values.device)
    return float(likeness(values[rows], values[others]).median()) if len(rows) else math.nan


def rightly_alike(made: Explanation, yardstick: Explanation, rows: Tensor, others: Tensor) -> bool:
    """Whether a yardstick hardly depends on the sample either, and agrees with these maps."""
    sizes = yardstick.with_values(yardstick.values.abs())
    same = float(likeness(sizes.values, made.values.abs().to(sizes.values.dtype)).median())
    return class_likeness(sizes, rows, others) > ALIKE and same > ALIKE


def perturbed_copy_of(task: Task, seed: int) -> nn.Module | None:
    """Nearly the same model; None where there are no weights, or none that can be copied."""
    source = task.predictor.source
    if source.shared or not any(p.is_floating_point() for p in source.module.parameters()):
        return None
    try:
        return noisy(source.copied().eval(), Key(seed) / "audit" / "twin", COPY_NOISE)
    except (VeridicalError, RuntimeError):
        return None


def nearly_the_same(task: Task, perturbed_copy: Task) -> bool:
    """Whether the copy's outputs are nearly those of the model; a model with steps can respond otherwise."""
    own, other = task.outputs.double(), perturbed_copy.outputs.double()
    return bool((own - other).abs().max() <= COPY_MOVES * own.abs().max())


def reason(found: PosthocChecks, rightly: bool) -> str:
    """Why a method is not trusted, in words; nothing where there is no post-hoc check."""
    if found.again < MIN_AGREEMENT:
        return (
            f"its maps differ from call to call (r = {found.again:.2f}): those scored here are not those it "
            "gives next time; let it draw from its argument `key`, or from the global generators of torch "
            "and numpy, which are seeded for it"
        )
    if found.perturbed_copy < MIN_AGREEMENT:
        return (
            "its maps turn into others when the weights change by a thousandth "
            f"(r = {found.perturbed_copy:.2f}): it explains these very weights in a way of its own"
        )
    if found.sample is None or found.sample.samples < PAIRS or found.sample.p <= ALPHA or rightly:
        return ""
    return (
        f"its maps are not shown to be about the sample: {found.sample.rival} does as well "
        f"({found.sample.rate:.0%} won, r = {found.alike:.2f} between them)"
    )


def run_posthoc_checks(elimination: Elimination, rules: Rules) -> None:
    """Check those that pass every test, and let those go that cannot be trusted any more."""
    rows, others = same_target(elimination.first_stage)
    for candidate in elimination.candidates.values():
        made = candidate.done[0].explanation
        if made is not None:
            candidate.posthoc = replace(candidate.posthoc, alike=class_likeness(made, rows, others))
    passing = elimination.passing(elimination.tests(rules))
    _compare_perturbed_copy(elimination, [candidate for candidate in passing if not candidate.same_target])
    for stage in range(len(elimination.stages)):
        _compare_same_target(elimination, [r for r in passing if _open(r, stage)], stage, rules)
    for candidate in passing:
        made = candidate.done[0].explanation
        assert made is not None
        found = replace(candidate.posthoc, sample=_test(candidate, elimination.task.head), refused="")
        refused = reason(found, rightly=False)
        if refused and found.alike > ALIKE and _rightly(elimination, made):
            refused = reason(found, rightly=True)
        candidate.posthoc = replace(found, refused=refused)
        if candidate.posthoc.conclusive:
            candidate.dropped = f"after {elimination.samples} samples: {refused}"


def _compare_perturbed_copy(elimination: Elimination, candidates: list[Candidate]) -> None:
    """Compare maps of a few samples with those for nearly the same model, once; of all where they differ."""
    module = perturbed_copy_of(elimination.task, elimination.jobs.seed) if candidates else None
    if module is None:
        return
    whole = elimination.first_stage
    perturbed_copy = whole.with_module(module).changed(alone=True)
    few = perturbed_copy[:COPY_SAMPLES]
    if not nearly_the_same(whole[:COPY_SAMPLES], few):
        return
    for candidate in candidates:
        r = _agreement(elimination, candidate, few, "perturbed copy")
        again = math.nan
        if r < MIN_AGREEMENT:
            # what it draws may depend on the samples it is given together: on all that were scored, once more
            r = _agreement(elimination, candidate, perturbed_copy, "perturbed copy, all samples")
            again = _agreement(elimination, candidate, whole.changed(alone=True), "once more")
        candidate.posthoc = replace(candidate.posthoc, perturbed_copy=r, again=again)


def _agreement(elimination: Elimination, candidate: Candidate, other: Task, place: str) -> float:
    """The median agreement of its maps with those of another task; 0 with a map that is not there."""
    job = Job(candidate.label, candidate.explainer, {}, other, other, place)
    made, own = elimination.jobs.do([job], place)[0].explanation, candidate.done[0].explanation
    assert own is not None  # who passes every test has maps
    own = own.take(slice(0, len(other)))
    theirs = torch.full_like(own.values, torch.nan) if made is None else made.values.to(own.values)
    there = own.values.isfinite().all(-1)  # without a map of the model either nothing can be compared
    return float(agreement(own.values, theirs, own.valid)[there].nan_to_num(0.0).median())


def _open(candidate: Candidate, stage: int) -> bool:
    """Whether a stage is the next one to be tested, and may decide something."""
    next_one = len(candidate.same_target) == stage < len(candidate.done)
    return next_one and candidate.done[stage].explanation is not None and _test(candidate).p > ALPHA


def _test(candidate: Candidate, head: str = "multiclass") -> Test:
    won = torch.cat(candidate.same_target) if candidate.same_target else torch.empty(0)
    return Test.of("sample", of_head(ANOTHER_SAMPLE, head), won)


def _compare_same_target(
    elimination: Elimination, candidates: list[Candidate], stage: int, rules: Rules
) -> None:
    """The maps of other samples of the class in the place of the samples' own, scored like these."""
    start, stop, batch, _ = elimination.stages[stage]
    rows, others = same_target(batch)
    if not candidates or not len(rows):
        for candidate in candidates:
            candidate.same_target.append(torch.empty(0, dtype=torch.float64))
        return
    place = f"other samples of the class, {start} to {stop}"
    metrics = {label: elimination.panel.removal[label] for label in elimination.admissible_labels}
    made = [candidate.done[stage].explanation for candidate in candidates]
    scored_on, explained = batch[rows], batch[others]
    jobs = [
        Job(r.label, r.explainer, metrics, explained, scored_on, place, made=exchanged(own, rows, others))
        for r, own in zip(candidates, made, strict=True)
        if own is not None
    ]
    for candidate, one in zip(candidates, elimination.jobs.do(jobs, place), strict=True):
        labels = elimination.panel.removal
        theirs = sample_scores([one], [len(rows)], labels).tied_where_missing()
        own = sample_scores([candidate.done[stage]], [stop - start], labels).take(rows.cpu())
        candidate.same_target.append(rules.removal_units(own, [theirs]))


def _rightly(elimination: Elimination, made: Explanation) -> bool:
    """Whether the model itself treats the samples of a class alike, in the way that these maps do."""
    task = elimination.first_stage
    rows, others = same_target(task)
    for name in YARDSTICKS:
        yardstick = as_explainer(name)
        if yardstick.inapplicable_reason(task) is None:
            if name not in elimination.yardsticks:
                elimination.yardsticks[name] = yardstick(task, Key(elimination.jobs.seed))
            if rightly_alike(made, elimination.yardsticks[name], rows, others):
                return True
    return False
