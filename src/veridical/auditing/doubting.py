"""The last questions of a look: who passes every test is asked what `doubts` says."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from veridical.auditing.doubts import (
    AGREE,
    ALIKE,
    MATE,
    NOT_ASKED,
    TWIN_SAMPLES,
    YARDSTICKS,
    agreement,
    class_likeness,
    exchanged,
    mates,
    nearly_the_same,
    reason,
    rightly_alike,
    twin_of,
)
from veridical.auditing.evidence import ALPHA, Rules, Test
from veridical.auditing.jobs import Job
from veridical.auditing.swap import marks
from veridical.core.key import Key
from veridical.explainers import as_explainer
from veridical.perturb.shared_work import sharing
from veridical.values.explanation import Explanation
from veridical.values.task import Task

if TYPE_CHECKING:
    from veridical.auditing.race import Race, Runner


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
