"""Post-hoc checks of methods that pass every test: is a map about its sample, and about these weights?"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from veridical.auditing.evidence import ALPHA, Rules, Test
from veridical.auditing.jobs import Job
from veridical.auditing.model_randomisation import marks
from veridical.core.key import Key
from veridical.errors import VeridicalError
from veridical.explainers import as_explainer
from veridical.functional import has_spread, pearson
from veridical.models.cost import Cost
from veridical.models.other_models import noisy
from veridical.perturb.shared_work import sharing
from veridical.values.explanation import Explanation
from veridical.values.task import Task

if TYPE_CHECKING:
    from veridical.auditing.elimination import Race, Runner


MATE = "its map of another sample of the class"
PAIRS = 12
"""Samples that share their class with another, below which nothing is asked."""
ALIKE = 0.99
"""The correlation from which on maps are the same."""
HARDLY = 0.95
"""The correlation between samples of a class from which on the verdict says so in words."""
TWIN_NOISE = 1e-3
"""By how much the weights of the twin differ, relatively; registered methods agree to .99 and more."""
TWIN_SAMPLES = 4
TWIN_MOVES = 0.05
"""By how much a twin's answers may move, relative to the largest, to count as nearly the same model."""
AGREE = 0.95
"""The agreement below which maps of twins differ."""
YARDSTICKS = ("gradient", "occlusion")
"""Maps that tell whether the model itself treats samples alike: a linear model has one gradient."""
NOT_ASKED = "the budget ended before it was asked whether its maps are of this sample and hold for a twin"


@dataclass(frozen=True)
class Doubts:
    """What came of it, for one method."""

    refused: str = ""
    """Why it is not trusted although it passes every test, if so."""
    alike: float = math.nan
    """How alike its maps of two samples of one class are: the median correlation."""
    sample: Test | None = None
    """Its maps against those of another sample of the class, where that was asked."""
    twin: float = math.nan
    """How alike its maps are to those of nearly the same model: the median agreement."""
    again: float = math.nan
    """How alike they are when the same model is asked again, where those of the twin are not."""


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


def mates(task: Task) -> tuple[Tensor, Tensor]:
    """Samples that share their class with another, and for each the next one of its class.

    None where features of one sample are not those of another: words of texts, segments of photos.
    """
    rows = torch.arange(len(task), device=task.device)
    if task.head == "generation" or task.space.valid is not None or task.space.per_sample:
        return rows[:0], rows[:0]
    groups = [(task.targets == target).nonzero()[:, 0] for target in task.targets.unique()]
    pairs = [(group, group.roll(-1)) for group in groups if len(group) > 1]
    if not pairs:
        return rows[:0], rows[:0]
    own, other = (torch.cat(some) for some in zip(*pairs, strict=True))
    order = own.argsort()
    return own[order], other[order]


def exchanged(made: Explanation, rows: Tensor, others: Tensor) -> Explanation:
    """The maps of class-mates in the place of the samples' own."""
    own = made.take(rows.to(made.ids.device))
    return replace(own.with_values(made.values[others.to(made.ids.device)]), cost=Cost())


def class_likeness(made: Explanation, rows: Tensor, others: Tensor) -> float:
    """How alike maps of samples of one class are: the median correlation; NaN where there are none."""
    values = made.values
    rows, others = rows.to(values.device), others.to(values.device)
    return float(likeness(values[rows], values[others]).median()) if len(rows) else math.nan


def rightly_alike(made: Explanation, yardstick: Explanation, rows: Tensor, others: Tensor) -> bool:
    """Whether a yardstick hardly depends on the sample either, and says what these maps say."""
    sizes = yardstick.with_values(yardstick.values.abs())
    same = float(likeness(sizes.values, made.values.abs().to(sizes.values.dtype)).median())
    return class_likeness(sizes, rows, others) > ALIKE and same > ALIKE


def twin_of(task: Task, seed: int) -> nn.Module | None:
    """Nearly the same model; None where there are no weights, or none that can be copied."""
    source = task.predictor.source
    if source.shared or not any(p.is_floating_point() for p in source.module.parameters()):
        return None
    try:
        return noisy(source.copied().eval(), Key(seed) / "audit" / "twin", TWIN_NOISE)
    except (VeridicalError, RuntimeError):
        return None


def nearly_the_same(task: Task, twin: Task) -> bool:
    """Whether the answers of a twin are nearly those of the model; steps in a model can make them others."""
    own, other = task.outputs.double(), twin.outputs.double()
    return bool((own - other).abs().max() <= TWIN_MOVES * own.abs().max())


def reason(found: Doubts, rightly: bool) -> str:
    """Why a method is not trusted, in words; nothing where there is no doubt."""
    if found.again < AGREE:
        return (
            f"its maps differ from call to call (r = {found.again:.2f}): those judged here are not those it "
            "gives next time; let it draw from its argument `key`, or from the global generators of torch "
            "and numpy, which are seeded for it"
        )
    if found.twin < AGREE:
        return (
            "its maps turn into others when the weights change by a thousandth "
            f"(r = {found.twin:.2f}): it explains these very weights in a way of its own"
        )
    if found.sample is None or found.sample.samples < PAIRS or found.sample.p <= ALPHA or rightly:
        return ""
    return (
        "its maps are not shown to be about the sample: its map of another sample of the same class does "
        f"as well ({found.sample.rate:.0%} won, r = {found.alike:.2f} between them)"
    )


def doubt(race: Race, rules: Rules) -> None:
    """Ask those that pass every test, and let those go that cannot be trusted any more."""
    rows, others = mates(race.first_look)
    for runner in race.runners.values():
        made = runner.done[0].explanation
        if made is not None:
            runner.doubts = replace(runner.doubts, alike=class_likeness(made, rows, others))
    passing = []
    for runner in (race.runners[label] for label in race.passing(race.tests(rules))):
        if runner.dropped:
            continue
        if runner.mates or race.pay(race.doubt_price(race.steps[0][1], [runner])):
            passing.append(runner)
        else:
            runner.doubts = replace(runner.doubts, refused=NOT_ASKED)
    _ask_twin(race, passing)
    for look in range(len(race.looks)):
        _ask_mates(race, [r for r in passing if len(r.mates) == look < len(r.done) and _open(r)], look, rules)
    for runner in passing:
        made = runner.done[0].explanation
        assert made is not None
        found = replace(runner.doubts, sample=_test(runner), refused="")
        refused = reason(found, rightly=False)
        if refused and found.alike > ALIKE and _rightly(race, made):
            refused = reason(found, rightly=True)
        runner.doubts = replace(found, refused=refused)
        if refused and (found.twin < AGREE or found.alike > ALIKE):  # more samples would not change it
            runner.dropped = f"after {race.samples} samples: {refused}"


def _ask_twin(race: Race, runners: list[Runner]) -> None:
    """Maps of a few samples for nearly the same model, once; who gives others there is asked more."""
    fresh = [runner for runner in runners if not runner.mates]
    module = twin_of(race.task, race.job_runner.seed) if fresh else None
    if module is None:
        return
    whole, few = race.first_look, race.first_look[:TWIN_SAMPLES]
    twin = whole.with_module(module).changed(alone=True)
    if not nearly_the_same(few, twin[:TWIN_SAMPLES]):
        return
    for runner, r in zip(fresh, _agreement(race, fresh, twin[:TWIN_SAMPLES], few, "twin"), strict=True):
        if r >= AGREE:
            runner.doubts = replace(runner.doubts, twin=r)
            continue
        # what it draws may depend on the samples it is asked together: on all that were judged, once more
        (r,) = _agreement(race, [runner], twin, whole, "twin, all samples")
        (again,) = _agreement(race, [runner], whole.changed(alone=True), whole, "once more")
        race.used += 2 * len(whole) * runner.rows
        runner.doubts = replace(runner.doubts, twin=r, again=again)


def _agreement(race: Race, runners: list[Runner], other: Task, few: Task, place: str) -> list[float]:
    """The median agreement of its maps with those of another task; 0 with a map that is not there."""
    done = race.job_runner.do([Job(r.label, r.explainer, {}, other, other, place) for r in runners], place)
    found = []
    for runner, one in zip(runners, done, strict=True):
        own = runner.done[0].explanation
        assert own is not None  # who passes every test has maps
        values, valid = own.values[: len(few)], own.take(slice(0, len(few))).valid
        theirs = torch.full_like(values, torch.nan) if one.explanation is None else one.explanation.values
        each = agreement(values, theirs.to(values), valid)
        there = values.isfinite().all(-1)  # where it has no map of the model either, nothing can be compared
        found.append(float(each[there].nan_to_num(0.0).median()))
    return found


def _open(runner: Runner) -> bool:
    return runner.done[len(runner.mates)].explanation is not None and _test(runner).p > ALPHA


def _test(runner: Runner) -> Test:
    return Test.of("sample", MATE, torch.cat(runner.mates) if runner.mates else torch.empty(0))


def _ask_mates(race: Race, runners: list[Runner], look: int, rules: Rules) -> None:
    """The maps of class-mates in the place of the samples' own, judged like these."""
    start, stop, batch, _ = race.looks[look]
    rows, others = mates(batch)
    if not runners or not len(rows):
        for runner in runners:
            runner.mates.append(torch.empty(0, dtype=torch.float64))
        return
    judged, explained = batch[rows], batch[others]
    place = f"other samples of the class, {start} to {stop}"
    metrics = {label: race.judges.removal[label] for label in race.heard_labels}
    made = [r.done[look].explanation for r in runners]
    jobs = [
        Job(r.label, r.explainer, metrics, explained, judged, place, made=exchanged(own, rows, others))
        for r, own in zip(runners, made, strict=True)
        if own is not None
    ]
    with sharing(judged):
        done = race.job_runner.do(jobs, place)
    race.used += race.doubt_price(stop - start, runners) if look else 0.0
    for runner, one in zip(runners, done, strict=True):
        theirs = marks([one], [len(rows)], race.judges.removal).tied_where_missing()
        own = marks(runner.done[look : look + 1], [stop - start], race.judges.removal).take(rows.cpu())
        runner.mates.append(rules.removal_units(own, [theirs]))


def _rightly(race: Race, made: Explanation) -> bool:
    """Whether the model itself treats the samples of a class alike, in the way that these maps say."""
    task = race.first_look
    rows, others = mates(task)
    for name in YARDSTICKS:
        yardstick = as_explainer(name)
        if yardstick.why_not(task) is None:
            if name not in race.yardsticks:
                race.yardsticks[name] = yardstick(task, Key(race.job_runner.seed))
            if rightly_alike(made, race.yardsticks[name], rows, others):
                return True
    return False
