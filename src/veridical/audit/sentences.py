"""The verdict in plain words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from veridical.audit.checks import Checks
from veridical.audit.verdict import ALPHA, Judge, Place, Verdict

FEW_SAMPLES = 30


def sentences(verdict: Verdict, checks: Checks, skipped_judges: Sequence[str] = ()) -> tuple[str, ...]:
    """What a reader must know, most important first."""
    return (
        *_choice(verdict),
        *_distrust(verdict),
        *_metrics(verdict),
        *_doubts(verdict, checks, skipped_judges),
    )


def _choice(verdict: Verdict) -> Iterator[str]:
    if not verdict.deciding:
        yield (
            "No verdict: no metric that measures faithfulness can be believed on this model, so nothing "
            "tells the explainers apart."
        )
        return
    if not verdict.controls:
        yield (
            "No verdict: no control was scored, so nothing tells whether any method is better than chance; "
            "the ranking only orders the methods among themselves."
        )
        return
    if not verdict.testable:
        yield (
            f"No verdict: {verdict.samples} samples are too few for a test of {verdict.comparisons} "
            f"comparisons with controls to come out at {ALPHA:.0%}, however good a method is. Give more."
        )
        return
    best = verdict.best
    if best is None:
        names = joined([place.explainer for place in verdict.controls])
        yield (
            f"No method is better than chance on this model: none stands above {names} for certain. Do not "
            "use any of these explanations as evidence."
        )
        return
    place = next(p for p in verdict.ranking if p.explainer == best)
    yield (
        f"Use {best}: it beats {place.score:.0%} of its rivals ({verdict.level:.0%} interval "
        f"{place.low:.0%} to {place.high:.0%}) and is the best with probability {place.p_best:.0%}."
    )
    top = verdict.ranking[0].explainer
    if top != best:
        yield f"{top} ranks first, but does not stand above every control for certain."
    equals = [name for name in verdict.equals_of(best) if _trusted(verdict, name)]
    if equals:
        yield (
            f"{joined(equals)} cannot be told apart from it on these {verdict.samples} samples "
            "(Wilcoxon, Holm)."
        )


def _trusted(verdict: Verdict, name: str) -> bool:
    return any(place.trusted for place in verdict.ranking if place.explainer == name)


def _distrust(verdict: Verdict) -> Iterator[str]:
    if not verdict.deciding or verdict.best is None:
        return
    by_rival: dict[str, list[str]] = {}
    for place in verdict.ranking:
        rivals = _not_beaten(place)
        if rivals:
            by_rival.setdefault(joined(rivals), []).append(place.explainer)
    for unbeaten, names in by_rival.items():
        they = "it does" if len(names) == 1 else "they do"
        yield f"Do not trust {joined(names)}: on this model {they} not beat {unbeaten} for certain."


def _not_beaten(place: Place) -> list[str]:
    return [name for name, p in place.beats.items() if not p < ALPHA]


def _metrics(verdict: Verdict) -> Iterator[str]:
    for judge in verdict.judges:
        if judge.ignored:
            yield f"Ignore {judge.metric} here: {judge.ignored}."
    heard = [judge for judge in verdict.judges if judge.weight > 0]
    if len(heard) > 1 and verdict.kendall_w == verdict.kendall_w:
        strongest = max(heard, key=lambda judge: judge.weight)
        how = (
            "agree well"
            if verdict.kendall_w >= 0.7
            else "agree in part"
            if verdict.kendall_w >= 0.4
            else "disagree"
        )
        yield (
            f"The {len(heard)} metrics that decide {how} on explainers and controls (Kendall's W "
            f"{verdict.kendall_w:.2f}); "
            f"{strongest.metric} weighs most ({strongest.weight:.0%}{_reliability(strongest)})."
        )
        for metric, rho in verdict.with_rest.items():
            if rho < 0:
                yield (
                    f"{metric} ranks explainers and controls against the others (rank correlation {rho:.2f})."
                )


def _reliability(judge: Judge) -> str:
    return "" if judge.reliability != judge.reliability else f", meta-consistency {judge.reliability:.2f}"


def _doubts(verdict: Verdict, checks: Checks, skipped: Sequence[str]) -> Iterator[str]:
    for check in checks.failed:
        yield check.sentence
    if verdict.samples < FEW_SAMPLES:
        yield f"There are only {verdict.samples} samples: intervals are wide and tests rarely significant."
    unmeasured = [j.metric for j in verdict.deciding if j.reliability != j.reliability]
    if unmeasured:
        they = "it counts" if len(unmeasured) == 1 else "they count"
        yield (
            f"The reliability of {joined(unmeasured)} could not be measured here; "
            f"{they} as moderately reliable."
        )
    yield from skipped


def joined(names: Sequence[str]) -> str:
    """Names as a list in a sentence."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"
