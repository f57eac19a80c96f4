"""Checks of methods that pass the tests: is a map about its sample, does it hide anything, what it shows."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from veridical.auditing.effort import heavy
from veridical.auditing.evidence import Entry, Rules
from veridical.auditing.grade import grade, reference_scores
from veridical.auditing.hidden import LEVEL, Veto, agreement_with, hidden_feature, lies_in_some
from veridical.auditing.jobs import Job
from veridical.auditing.measured_effects import Effects, measured_effects
from veridical.auditing.model_randomisation import sample_scores
from veridical.core.key import Key
from veridical.errors import VeridicalError
from veridical.explainers import as_explainer
from veridical.functional import has_spread, pearson
from veridical.models.context import Context
from veridical.models.cost import Cost
from veridical.models.randomised_layers import noisy
from veridical.values.explanation import Explanation
from veridical.values.task import Task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from veridical.auditing.elimination import Candidate, Elimination


PAIRS = 12
"""Samples that share their class with another, below which nothing is tested."""
MIN_FEATURES = 3
"""Of fewer features two maps always correlate with 1 or -1."""
ALIKE = 0.99
"""The correlation from which on maps are the same."""
COPY_NOISE = 1e-3
"""By how much the weights of the copy differ, relatively; registered methods agree to .99 and more."""
COPY_SAMPLES = 4
PERTURBED = "perturbed copy"
"""The fault of maps that turn into others for nearly the same weights."""
GRADED_BY = "qge:pixel_flipping"
"""The metric whose scores grades compare."""
COPY_MOVES = 0.05
"""By how much outputs of the copy may move, relative to the largest, for it to be nearly the same model."""
MIN_AGREEMENT = 0.95
"""The agreement below which maps of the two differ."""
YARDSTICKS = ("gradient", "occlusion")
"""Maps that show whether the model itself treats samples alike: a linear model has one gradient."""


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


def why_not_of_sample(task: Task) -> str:
    """Why maps of other samples of the class cannot take the place of a sample's own; empty if they can."""
    if task.head == "generation" or task.space.valid is not None or task.space.per_sample:
        return "features of one sample are not those of another"
    if task.space.n_features < MIN_FEATURES:
        return f"with fewer than {MIN_FEATURES} features the maps of two samples hardly differ"
    return ""


def same_target(task: Task) -> tuple[Tensor, Tensor]:
    """Samples that share their class with another, and for each the next one of its class.

    None where `why_not_of_sample` says why.
    """
    rows = torch.arange(len(task), device=task.device)
    if why_not_of_sample(task):
        return rows[:0], rows[:0]
    groups = [(task.targets == target).nonzero()[:, 0] for target in task.targets.unique()]
    pairs = [(group, group.roll(-1)) for group in groups if len(group) > 1]
    if not pairs:
        return rows[:0], rows[:0]
    own, other = (torch.cat(some) for some in zip(*pairs, strict=True))
    order = own.argsort()
    return own[order], other[order]


def why_no_sample(task: Task, steps: Sequence[tuple[int, int]]) -> str:
    """Why it is not asked whether maps are about the sample; empty where it is."""
    why = why_not_of_sample(task)
    if why:
        return why
    shared = sum(len(same_target(task[start:stop])[0]) for start, stop in steps)
    return f"only {shared} samples share their class with another" if shared < PAIRS else ""


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


def of_the_copy(r: float, again: float, samples: int) -> Veto:
    """What maps of nearly the same model show, `again` being those of the same model once more."""
    if again < MIN_AGREEMENT:
        words = (
            f"its maps differ from call to call (r = {again:.2f}): those scored here are not those it "
            "gives next time; let it draw from its argument `key`, or from the global generators of torch "
            "and numpy, which are seeded for it"
        )
        return Veto(PERTURBED, True, words, samples)
    if r < MIN_AGREEMENT:
        words = (
            f"its maps turn into others when the weights change by a thousandth (r = {r:.2f}): it explains "
            "these very weights in a way of its own"
        )
        return Veto(PERTURBED, True, words, samples)
    words = f"weights that differ by a thousandth get nearly the same maps (r = {r:.2f})"
    return Veto(PERTURBED, False, words, samples)


def run_posthoc_checks(elimination: Elimination, rules: Rules) -> None:
    """Set maps of passing methods against those of other samples, and of nearly the same model."""
    rows, others = same_target(elimination.first_stage)
    for candidate in elimination.candidates.values():
        made = candidate.done[0].explanation
        if made is not None:
            candidate.alike = class_likeness(made, rows, others)
    passing = elimination.passing(rules, but="sample")
    _compare_perturbed_copy(
        elimination, [r for r in passing if PERTURBED not in r.vetoes and not r.explainer.one_model]
    )
    _look_for_faults(elimination, passing, rules)
    if "sample" not in rules.criteria:
        return
    for stage in range(len(elimination.stages)):
        still = [r for r in passing if len(r.same_target) == stage and _open(elimination, r, rules)]
        _compare_same_target(elimination, still, stage, rules)
    for candidate in passing:
        made = candidate.done[0].explanation
        assert made is not None
        if candidate.alike <= ALIKE or not _open(elimination, candidate, rules):
            continue
        if _rightly(elimination, made):
            candidate.not_asked["sample"] = (
                "the model itself, by its gradient or by occlusion, treats the samples of a class alike"
            )
        else:
            words = f"it shows one map for all samples of a class (r = {candidate.alike:.2f} between them)"
            candidate.vetoes["one map"] = Veto("one map", True, words, len(rows))


def _open(elimination: Elimination, candidate: Candidate, rules: Rules) -> bool:
    """Whether it is still open whether its maps are about the sample."""
    asked = rules.questions(elimination.entry(candidate))
    return any(question.criterion == "sample" and question.state == "open" for question in asked)


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
        again, samples = math.nan, len(few)
        if r is not None and r < MIN_AGREEMENT:
            # what it draws may depend on the samples it is given together: on all that were scored, once more
            r = _agreement(elimination, candidate, perturbed_copy, "perturbed copy, all samples")
            once_more = _agreement(elimination, candidate, whole.changed(alone=True), "once more")
            again, samples = math.nan if once_more is None else once_more, len(whole)
        if r is None:
            candidate.unfinished = "it has no map for weights that differ by a thousandth"
        else:
            candidate.vetoes[PERTURBED] = of_the_copy(r, again, samples)


def _look_for_faults(elimination: Elimination, candidates: Sequence[Candidate], rules: Rules) -> None:
    """Look for hidden features, and for samples in which a method lies, at a level shared by all stages."""
    if rules.removing == "near":  # what is measured by masks says nothing of this model
        return
    level, task = LEVEL / len(elimination.steps), elimination.task[: elimination.samples]
    effects = _effects(elimination) if candidates else None
    for candidate in candidates:
        maps = [done.explanation for done in candidate.done if done.explanation is not None]
        values = torch.cat([made.values for made in maps])
        classes = task.targets if task.head in ("multiclass", "binary") else None
        if effects is not None and values.shape[-1] == task.space.n_features:
            agrees = agreement_with(values, effects, task.space.valid)
            found = [hidden_feature(values, effects, task.space, level)]
            found.append(lies_in_some(agrees, classes, level=level))
        else:
            won = _against_chance(elimination.entry(candidate), rules)
            fault = "is no better than noise"
            found = [lies_in_some(won, classes, level=level, fault=fault)]
        candidate.vetoes |= {veto.name: veto for veto in found}


def _against_chance(entry: Entry, rules: Rules) -> Tensor:
    """Units (N,) against the controls that are chance; NaN where there is no map."""
    won = [rules.removal_units(entry.removal, rules.controls[name]) for name in rules.chance]
    return torch.stack(won).mean(0).masked_fill(entry.removal.missing, torch.nan)


def _effects(elimination: Elimination) -> Effects | None:
    """The measured effects of all samples so far; None where they cannot be measured, or a row takes long."""
    if heavy(elimination.task) and not elimination.describes:
        return None
    memo, seed = elimination.jobs.memo, elimination.jobs.seed
    for stage in elimination.stages[len(elimination.effects) :]:
        context = Context.begun(stage.task.predictor, Key(seed), memo)  # as KernelSHAP: one bank
        try:
            elimination.effects.append(measured_effects(stage.task, context))
        except VeridicalError:
            return None
    each = elimination.effects
    values, errors = (torch.cat(parts) for parts in zip(*((e.values, e.errors) for e in each), strict=True))
    return Effects(values, errors, all(e.exact for e in each), sum(e.rows for e in each), each[0].cells)


def give_grades(elimination: Elimination) -> None:
    """Grade every method by what it shows of what a reference order shows, where effects were measured."""
    if not elimination.effects or GRADED_BY not in elimination.admissible_labels:
        return
    metric, seed, memo = elimination.panel.removal[GRADED_BY], elimination.jobs.seed, elimination.jobs.memo
    only = {GRADED_BY: metric}
    parts = [
        reference_scores(stage.task, effects, metric, seed, memo)
        for stage, effects in zip(elimination.stages, elimination.effects, strict=False)
    ]
    best, names = torch.cat([scores for scores, _ in parts]).cpu(), {name for _, name in parts}
    chance = [r for r in elimination.controls.values() if r.explainer.stochastic and not r.dropped]
    draws = [draw.utility[0] for control in chance for draw in control.all_draws(only)]
    if len(names) > 1 or not draws:
        return
    noise = torch.stack(draws).nanmean(0)
    for candidate in elimination.candidates.values():
        own = candidate.sample_scores(only).utility[0]
        count = min(len(own), len(best))
        if not bool(own.isnan().all()):
            candidate.grade = grade(own[:count], noise[:count], best[:count], seed, *names)


def _agreement(elimination: Elimination, candidate: Candidate, other: Task, place: str) -> float | None:
    """The median agreement of its maps with those of another task; None without a map where it has one."""
    job = Job(candidate.label, candidate.explainer, {}, other, other, place)
    made, own = elimination.jobs.do([job], place)[0].explanation, candidate.done[0].explanation
    assert own is not None  # who passes every test has maps
    if made is None:
        return None
    own = own.take(slice(0, len(other)))
    there = own.values.isfinite().all(-1)  # without a map of the model either nothing can be compared
    theirs = made.values.to(own.values)
    if not bool(theirs[there].isfinite().all()):
        return None
    return float(agreement(own.values, theirs, own.valid)[there].nan_to_num(0.0).median())


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
