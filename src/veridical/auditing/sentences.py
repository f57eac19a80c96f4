"""The verdict in plain words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from veridical.auditing.check import Checks
from veridical.auditing.evidence import HERE, SIZE, Test, of_head
from veridical.auditing.verdict import Place, Verdict, Words

SURE_SAMPLES = 64
"""Samples with which a method that wins three in four is found nearly always."""
ALIKE_ENOUGH = 0.95
"""The correlation between samples of a class from which on the verdict mentions it."""
WORDS = {
    "random": "noise",
    "input_magnitude": "the size of the input",
    "sobel": "edges",
}
QUESTIONS = {
    "removal": "Do the features it names matter to this model?",
    "near": "Do the features it names matter near the data?",
    "randomisation": "Does it explain this model and not another?",
    "sample": "Is it about this sample?",
    "truth": "Does it find what is known to matter?",
}
INFORMATIVE = "Trusted means informative, not complete."


@dataclass(frozen=True)
class Circumstances:
    """What an audit knows beside the verdict: of the samples, the model, and what was left out."""

    checks: Checks
    given: int = 0
    """Distinct samples there are."""
    planned: int = 0
    """Those that were to be compared."""
    ended: str = ""
    """Why not all of these were compared, if so."""
    moves: str = ""
    """How far the outputs move from call to call; empty where they stay."""
    head: str = "multiclass"
    skipped: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    removal: Sequence[str] = ()
    """Whether removal is about the data, and whether another fill changes the answer."""


def in_words(rival: str, head: str = "multiclass") -> str:
    """A control, or maps of another model, as a reader knows them."""
    return WORDS.get(rival, of_head(rival, head))


def in_sentences(verdict: Verdict, known: Circumstances) -> Words:
    """What a reader must know."""
    places = () if verdict.why_none else verdict.ranking
    failed = [check for check in known.checks.failed if check.name not in ("accuracy", "steadiness")]
    return Words(
        tuple(_answer(verdict, known)),
        tuple(line_of(place, verdict, known.head) for place in places),
        (
            *_absent(verdict),
            *_of_the_class(verdict),
            *known.removal,
            *_metrics(verdict),
            *(check.sentence for check in failed),
            *known.notes,
        ),
    )


def headline(verdict: Verdict) -> str:
    """The answer in a few words."""
    if verdict.why_none:
        return "No verdict"
    if verdict.best is None:
        return "No method is trusted on this model"
    how = "Use, provisionally," if verdict[verdict.best].provisional else "Use"
    return f"{how} {joined([place.explainer for place in verdict.ranking if place.group == 1], 'or')}"


def _answer(verdict: Verdict, known: Circumstances) -> Iterator[str]:
    """The first paragraph."""
    yield from _choice(verdict, known.head)
    yield from _grades(verdict)
    yield from _on_what(verdict, known)
    said = [check.sentence for check in known.checks.checks if check.name == "accuracy"]
    yield " ".join(said) or "Labels were not given, so nobody knows how often the model is right."
    if not known.moves:
        yield "Given the same row again, the model answers alike."
    else:
        why = "chance or the other rows of a batch are in every score"
        yield f"Given the same row again, {known.moves}: {why}."
    dear = [name for name, why in known.skipped.items() if "budget" in why]
    if dear:
        yield f"Not tried, for lack of budget: {joined(dear)}. The answer is about the others."


def _choice(verdict: Verdict, head: str) -> Iterator[str]:
    if verdict.why_none:
        yield f"No verdict: {verdict.why_none}."
        return
    if verdict.best is None:
        yield _nobody(verdict)
        return
    best, name = verdict[verdict.best], verdict.best
    if len(verdict.leading) > 1:
        yield f"{headline(verdict)}: they lead, and these samples do not distinguish them. {INFORMATIVE}"
        yield f"{name} has the cheapest maps of these ({best.rows:,} rows each): {evidence_of(best, head)}."
    else:
        yield f"{headline(verdict)}: {evidence_of(best, head)}. {INFORMATIVE}"
    if len(verdict.ranking) == 1:
        yield "It was the only method tried, so it is compared with no other."


def _nobody(verdict: Verdict) -> str:
    """What is said where no method is trusted."""
    words = [place.status for place in verdict.ranking]
    if all(word == "refuted" for word in words):
        return f"{headline(verdict)}: all are refuted. Do not use any of these explanations as evidence."
    counts = {word: words.count(word) for word in words}
    found = [f'{count} {"is" if count == 1 else "are"} "{word}"' for word, count in counts.items()]
    return f"{headline(verdict)}: of {len(words)} tried, {joined(found)}."


def _on_what(verdict: Verdict, known: Circumstances) -> Iterator[str]:
    """On how many of how many distinct samples, and why it stopped there."""
    samples, given, planned = verdict.samples, known.given, known.planned or verdict.samples
    if not given:
        return
    of = (
        f"all {given:,} distinct samples"
        if samples == given
        else f"{samples:,} of {given:,} distinct samples"
    )
    if known.ended:
        why = f"; {planned:,} were planned, but {known.ended}" if planned > samples else f"; {known.ended}"
    else:
        why = "" if samples == given else ", as many as this effort takes"
    yield f"Decided on {of}{why}." if not verdict.why_none else f"Compared: {of}{why}."


def line_of(place: Place, verdict: Verdict, head: str = "multiclass") -> str:
    """A method in a line: word, grade, reason."""
    return f"{place.explainer}: {', '.join(filter(None, (place.status, grade_of(place))))}; " + (
        f"{reason_of(place, head, verdict)}."
    )


def grade_of(place: Place) -> str:
    """How much it shows, in words; nothing where that was not measured."""
    grade = place.grade
    if grade is None or grade.value != grade.value:
        return ""
    return f"shows {grade}"


def evidence_of(place: Place, head: str = "multiclass") -> str:
    """The tests of a trusted method in a sentence, each with the samples it rests on."""
    found: dict[str, list[Test]] = {}
    for test in place.tests:
        found.setdefault(test.criterion, []).append(test)
    other = of_head("that of another sample of the class", head)
    words = {
        "removal": "when features are removed it beats",
        "near": "when features go towards near rows it beats",
        "randomisation": "it fits this model better than another in",
        "sample": f"its map beats {other} in",
        "truth": "it finds what is known to matter better than noise in",
    }
    parts = [
        f"{words[name]} {_wins(tests, head) if name in ('removal', 'near') else _least(tests)}"
        f" of {tests[0].samples}{'' if i else ' samples'}"
        for i, (name, tests) in enumerate(found.items())
    ]
    return joined(parts)


def _least(tests: Sequence[Test]) -> str:
    return f"{min(test.rate for test in tests):.0%}"


def _wins(tests: Sequence[Test], head: str) -> str:
    return joined([f"{in_words(test.rival, head)} in {test.rate:.0%}" for test in tests])


def reason_of(place: Place, head: str = "multiclass", verdict: Verdict | None = None) -> str:
    """Why this is its word."""
    status = place.status
    if place.trusted:
        words = evidence_of(place, head)
        own = [q.reason for q in place.questions if q.criterion == "randomisation" and q.reason]
        if own and (verdict is None or "randomisation" not in verdict.absent):
            words += f'; "{QUESTIONS["randomisation"]}" could not be asked: {own[0]}'
        best = verdict.best if verdict is not None else None
        if verdict is not None and best is not None and place.explainer not in verdict.leading:
            share = verdict.share(place.explainer, best)
            words += f"; it beats {best} in {share:.0%} of samples"
        return words
    if status == "no verdict":
        return ""
    if status == "refuted":
        return joined([*_failed(place, head), *(veto.sentence for veto in place.vetoes if veto.fell)])
    if status == "adds nothing shown":
        return _adds_nothing(place, head)
    return _undecided(place, head)


def _failed(place: Place, head: str) -> Iterator[str]:
    """What each question that fails means."""
    for question in place.questions:
        lost = [test for test in question.tests if test.state == "fails"]
        if not lost:
            continue
        if question.criterion == "near":
            yield f"when features go towards near rows it wins only {_against(lost, head)}"
        elif question.criterion == "removal":
            yield f"when features are removed it wins only {_against(lost, head)}"
        elif question.criterion == "truth":
            yield f"at finding what is known to matter it wins only {_against(lost, head)}"
        elif question.criterion == "sample":
            yield f"{of_head(lost[0].rival, head)} explains a sample better ({_least(lost)} won)"
        elif any(test.rival in HERE for test in lost):
            yield f"maps made for another model explain this one better ({_least(lost)} won)"
        elif all(test.rival == SIZE for test in lost):
            yield f"on another model it is worse than the size of the input ({_least(lost)} won)"
        else:
            yield f"its maps do not follow when the model is another one ({_least(lost)} won)"


def _against(tests: Sequence[Test], head: str) -> str:
    rivals = [(test, in_words(test.rival, head)) for test in tests]
    return joined([f"{test.rate:.0%} of {test.samples} samples against {rival}" for test, rival in rivals])


def _adds_nothing(place: Place, head: str) -> str:
    removal = [test for test in place.tests if test.criterion == "removal"]
    equal = [test for test in removal if test.rival in place.equal_to]
    beaten = [test for test in removal if test.rival not in place.equal_to]
    names = joined([in_words(test.rival, head) for test in equal])
    return (
        f"it beats {_wins(beaten, head)} of samples, but {names} already "
        f"{'explains' if len(equal) == 1 else 'explain'} this model as well ({_interval(equal[0])} won)"
    )


def _interval(test: Test) -> str:
    return f"{test.rate:.0%} [{test.low:.0%}, {test.high:.0%}]"


def _undecided(place: Place, head: str) -> str:
    """What is open: the weakest question, how it stands, and how many samples would decide it."""
    question = place.weakest
    if place.unfinished or question is None:
        return place.unfinished or place.dropped or "it has no map"
    if not all(test.samples for test in question.tests):
        return f'"{QUESTIONS[question.criterion]}" was not reached'
    still = [test for test in question.tests if test.state == "open"]
    worst = max(still, key=lambda test: test.p)
    needed = f"about {place.needed:,}" if place.needed else "more than 1,000"
    return (
        f'open is "{QUESTIONS[question.criterion]}": {_of_rival(worst, head)} in '
        f"{_interval(worst)} of {worst.samples} samples; {needed} samples would decide it"
    )


def _of_rival(test: Test, head: str) -> str:
    """What a test is won for, to go before a rate."""
    if test.criterion == "sample":
        return f"its map beats {of_head('that of another sample of the class', head)}"
    if test.criterion != "randomisation":
        return f"it beats {in_words(test.rival, head)}"
    if test.rival == SIZE:
        return "on another model it beats the size of the input"
    return "it fits this model better than another" if test.rival in HERE else "it follows another model"


def _absent(verdict: Verdict) -> Iterator[str]:
    """Questions without an answer that keep trust provisional."""
    for criterion, why in verdict.absent.items():
        if criterion in ("removal", "randomisation") and not verdict.why_none:
            yield f'Not asked: "{QUESTIONS[criterion]}", since {why}. So trust is provisional.'


def _of_the_class(verdict: Verdict) -> Iterator[str]:
    """Trusted methods whose maps hardly depend on the sample, rightly so: a reader must know."""
    for place in verdict.ranking:
        if place.trusted and place.alike > ALIKE_ENOUGH:
            yield (
                f"The maps of {place.explainer} hardly depend on the sample (r = {place.alike:.2f} "
                "between samples of a class): read them as what the model does with the class."
            )


def _grades(verdict: Verdict) -> Iterator[str]:
    """What the leading methods show, or where none leads what the percentages behind the words mean."""
    graded = {place.explainer: place.grade for place in verdict.ranking if grade_of(place)}
    if verdict.why_none or not graded:
        return
    names = [name for name in graded if name in verdict.leading]
    of = next(grade.reference for grade in graded.values() if grade is not None)
    words = joined([f"{name} shows {graded[name]}" for name in names]) or "each method shows so much"
    yield f"Of what {of} gains over noise when features are removed, {words}."


def with_another_fill(verdict: Verdict, other: Verdict, fill: str, another: str) -> str:
    """Which methods get another word where another fill stands for removed features."""
    pairs = [(one.explainer, one.status, other[one.explainer].status) for one in verdict.ranking]
    changed = [f"{name} ({own}, then {word})" for name, own, word in pairs if own != word]
    found = f"another word is said of {joined(changed)}" if changed else "every method keeps its word"
    return f"Where {another} takes the place of removed features instead of {fill}, {found}."


def _metrics(verdict: Verdict) -> Iterator[str]:
    silent = [role for role in verdict.metrics if role.decides and role.inadmissible]
    if silent and not verdict.why_none:
        count = sum(role.decides for role in verdict.metrics)
        yield f"{len(silent)} of {count} deciding measures do not see damage planted here, and do not count."


def joined(names: Sequence[str], last: str = "and") -> str:
    """Names as a list in a sentence."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} {last} {names[-1]}"
