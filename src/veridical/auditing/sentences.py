"""The verdict in plain words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from veridical.auditing.check import Checks
from veridical.auditing.evidence import ALPHA, HERE, Test, of_head
from veridical.auditing.posthoc_checks import NEARLY_ALIKE
from veridical.auditing.verdict import Place, Verdict

SURE_SAMPLES = 64
WORDS = {
    "random": "noise",
    "input_magnitude": "the size of the input",
    "sobel": "edges",
}
CRITERIA = {"removal": "when features are removed", "truth": "at finding what is known to matter"}
QUESTIONS = {
    "removal": "Do the features it names matter to this model?",
    "randomisation": "Does it explain this model and not another?",
    "truth": "Does it find what is known to matter?",
}


def in_words(rival: str, head: str = "multiclass") -> str:
    """A control, or maps of another model, as a reader knows them."""
    return WORDS.get(rival, of_head(rival, head))


def sentences(
    verdict: Verdict, checks: Checks, skipped: Mapping[str, str], notes: Sequence[str] = (), ended: str = ""
) -> tuple[str, ...]:
    """What a reader must know, most important first; `ended` is why not all samples were compared."""
    first, *choice = _choice(verdict)
    return (
        first,
        *([ended] if ended else []),
        *choice,
        *_not_tried(skipped),
        *_of_the_class(verdict),
        *_distrust(verdict),
        *_metrics(verdict),
        *(check.sentence for check in checks.failed),
        *_few_samples(verdict),
        *notes,
    )


def _choice(verdict: Verdict) -> Iterator[str]:
    if verdict.why_none:
        yield f"No verdict: {verdict.why_none}."
        return
    best = verdict.best
    if best is None:
        none = (
            "No method is trusted on this model: none is shown to beat every control under every criterion."
        )
        undecided = [place.explainer for place in verdict.ranking if place.status == "not decided"]
        if undecided:
            yield f"{none} {joined(undecided)} {'is' if len(undecided) == 1 else 'are'} not decided."
        elif all(place.fails for place in verdict.ranking):
            yield f"{none} Do not use any of these explanations as evidence."
        else:
            yield none
        return
    place = verdict[best]
    how = "Use" if not place.provisional else "Use, provisionally,"
    yield f"{how} {best}: {evidence_of(place)} ({place.samples} samples)."
    for line, why in verdict.absent.items():
        yield f"Trust is provisional: the criterion '{line}' is absent, since {why}."
    equals = [name for name in verdict.leading if name != best]
    if equals:
        yield (
            f"{joined(equals)} cannot be distinguished from it on these samples; {best} is named because its "
            f"maps are the cheapest ({place.rows:,} rows each)."
        )
    if len(verdict.ranking) == 1:
        yield "It was the only method tried, so it is compared with no other."
    others = [p.explainer for p in verdict.ranking if p.trusted and p.explainer not in verdict.leading]
    if others:
        they = "is trusted too, but loses" if len(others) == 1 else "are trusted too, but lose"
        yield f"{joined(others)} {they} to those above."


def evidence_of(place: Place) -> str:
    """The tests of a trusted method in a sentence."""
    removal = [f"{in_words(t.rival)} in {t.rate:.0%}" for t in place.tests if t.criterion == "removal"]
    words = f"when features are removed it beats {joined(removal)} of samples"
    fits = [t.rate for t in place.tests if t.criterion == "randomisation"]
    if fits:
        words += f", it fits this model better than another in {min(fits):.0%}"
    sample = place.posthoc.sample
    if sample is not None and sample.p <= ALPHA:
        words += f", its map beats {sample.rival.replace('its map', 'that')} in {sample.rate:.0%}"
    truth = [t.rate for t in place.tests if t.criterion == "truth"]
    if truth:
        words += f", and it finds what is known to matter better than noise in {min(truth):.0%}"
    return words


def _of_the_class(verdict: Verdict) -> Iterator[str]:
    """Trusted methods whose maps hardly depend on the sample, rightly so: a reader must know."""
    alike = [place for place in verdict.ranking if place.trusted and place.posthoc.alike > NEARLY_ALIKE]
    for place in alike:
        yield (
            f"The maps of {place.explainer} hardly depend on the sample (r = {place.posthoc.alike:.2f} "
            "between samples of a class): read them as what the model does with the class."
        )


def _not_tried(skipped: Mapping[str, str]) -> Iterator[str]:
    """Who could not be tried although it might have won."""
    dear = [name for name, why in skipped.items() if "budget" in why]
    if dear:
        yield f"Not tried, for lack of budget: {joined(dear)}. The answer is about the others."


def _distrust(verdict: Verdict) -> Iterator[str]:
    if verdict.why_none:
        return
    openings = {"not trusted": "Do not trust", "failed": "No map of", "not decided": "Not decided for"}
    by_reason: dict[tuple[str, str], list[str]] = {}
    for place in verdict.ranking:
        if place.status in openings:
            by_reason.setdefault((openings[place.status], reason_of(place)), []).append(place.explainer)
    for (opening, reason), names in by_reason.items():
        yield f"{opening} {joined(names)}: {reason}."


def reason_of(place: Place) -> str:
    """Why a method is not trusted, by the first criterion that it fails or that is open."""
    if not place.samples:
        return place.dropped or "it has no map"
    shown = [test for test in place.not_passed if test.lost] if place.fails else list(place.not_passed)
    for criterion, what in CRITERIA.items():
        here = [test for test in shown if test.criterion == criterion]
        if here and place.fails:
            return f"no better than {joined([in_words(test.rival) for test in here])} {what}"
        if here:
            won = joined([f"{test.rate:.0%} against {in_words(test.rival)}" for test in here])
            return f"of {here[0].samples} samples it wins {won} {what}, too few to tell"
    if place.posthoc.refused:
        return place.posthoc.refused
    halves = [test for test in shown if test.criterion == "randomisation"]
    if halves and place.fails:
        return randomisation_reason(halves)
    if halves and not halves[0].samples:
        return "it was not set against other models"
    if halves:
        worst = min(halves, key=lambda test: test.rate)
        where = "fits this model better than another" if worst.rival in HERE else "follows another model"
        return f"its map {where} in {worst.rate:.0%} of {worst.samples} samples, too few to tell"
    return (
        "it passes each test by itself, but not after correction for all methods tried "
        f"(p = {place.p_holm:.2f}); more samples or fewer methods would tell"
    )


def randomisation_reason(halves: Sequence[Test]) -> str:
    """What a lost half of the model randomisation test means."""
    if any(test.rival in HERE for test in halves):
        return "maps made for another model explain this one as well"
    return "the maps do not follow when the model is another one"


def _metrics(verdict: Verdict) -> Iterator[str]:
    for role in verdict.metrics:
        if role.decides and role.inadmissible:
            yield f"{role.metric} is not admissible here: {role.inadmissible}."


def _few_samples(verdict: Verdict) -> Iterator[str]:
    if not verdict.why_none and verdict.samples < SURE_SAMPLES:
        yield (
            f"{verdict.samples} samples find only methods that win often; with 64 a method that wins three "
            "in four is found nearly always."
        )


def joined(names: Sequence[str]) -> str:
    """Names as a list in a sentence."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"
