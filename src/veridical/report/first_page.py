"""The page to sign: question, verdict, evidence in plain words, what would change it, limits."""

from __future__ import annotations

from typing import Any

from veridical.auditing import Audit, Place, Test
from veridical.auditing.evidence import HERE, MIN_SAMPLES, SHOWN, SIZE
from veridical.auditing.sentences import QUESTIONS, SURE_SAMPLES, in_words, joined
from veridical.data.generation import Generation
from veridical.values.task import Task


def first_page(audit: Audit) -> dict[str, Any]:
    """All that stands before the first chart."""
    verdict = audit.verdict
    shown = verdict[verdict.best] if verdict.best else next(iter(verdict.ranking), None)
    return {
        "question": (
            f"Which of {len(verdict.ranking)} explainers may be used on this model, which not, and how sure "
            "is that?"
        ),
        "shown": None if shown is None else shown.explainer,
        "evidence": [] if shown is None else _evidence(shown, audit),
        "changes": _changes(audit),
        "limits": _limits(audit),
    }


def _evidence(place: Place, audit: Audit) -> list[dict[str, Any]]:
    """Each question with its state and results, then what was looked for."""
    found = []
    for question in place.questions:
        # without classes two tests are one
        said = list(dict.fromkeys(in_a_sentence(test, audit.task.head) for test in question.tests))
        if question.state == "not asked":
            said = [f"Not asked: {question.reason}."]
        elif question.criterion == "sample" and place.alike == place.alike:
            said[0] = f"{said[0].rstrip('.')}; r = {place.alike:.2f} between maps of samples of a class."
        name = question.criterion
        found.append({"criterion": name, "question": QUESTIONS[name], "state": question.state, "said": said})
    if place.vetoes:
        said = [f"{veto.sentence[:1].upper()}{veto.sentence[1:]}." for veto in place.vetoes]
        state = "found" if any(veto.fell for veto in place.vetoes) else "nothing found"
        found.append({"criterion": "faults", "question": FAULTS, "state": state, "said": said})
    return found


FAULTS = "Does anything speak against it?"


def in_a_sentence(test: Test, head: str = "multiclass") -> str:
    """One test in plain words."""
    if not test.samples:
        return "Not reached: other questions come first."
    sure = f"{test.rate:.0%} of {test.samples} samples (99% interval {test.low:.0%} to {test.high:.0%})"
    rival = in_words(test.rival, head)
    same = {"generation": "the same answer", "regression": "the same output"}.get(head)
    whose = same or "each for the class it predicts"
    if test.criterion == "sample":
        words = f"Its map explains a sample better than {rival}"
    elif test.criterion == "truth":
        words = f"It finds the marked features better than {rival}"
    elif test.criterion == "near":
        words = f"When features go towards near rows, its order tells what matters better than {rival}"
    elif test.criterion != "randomisation":
        words = f"When features are removed, its order tells what matters better than {rival}"
    elif test.rival == SIZE:
        words = (
            "A model with other weights, too, is explained better by its maps of that model than by the size "
            "of the input"
        )
    elif test.rival in HERE:
        words = (
            f"Its maps of this model explain it better than its maps of a model with other weights ({whose})"
        )
    else:
        words = (
            "A model with other weights is explained better by its maps of that model than by those of this "
            f"one ({whose})"
        )
    return f"{words} in {sure}."


def _changes(audit: Audit) -> list[str]:
    """What would change the verdict, as far as this audit shows."""
    verdict = audit.verdict
    sentences = [
        "Other weights: the answer is about the weights named below; an updated model needs its own."
    ]
    if audit.task.moves:
        sentences.append("A model that gives the same row the same outputs: dropout off, rows kept apart.")
    elif verdict.why_none or verdict.samples < SURE_SAMPLES:
        need = MIN_SAMPLES if verdict.samples < MIN_SAMPLES else SURE_SAMPLES
        sentences.append(
            f"More samples: {verdict.samples} were compared, {need} or more find what these could not."
        )
    near = [place.explainer for place in verdict.ranking if place.status == "not decided" and place.needed]
    if near:
        sentences.append(f"More samples would decide {joined(near)}, as above.")
    dear = [name for name, why in audit.skipped_explainers.items() if "budget" in why]
    if dear:
        sentences.append(f"A larger budget: {joined(dear)} could not be tried.")
    if len(verdict.leading) > 1:
        sentences.append(
            f"More samples may separate {joined(verdict.leading)}; until then any of them is as good."
        )
    if "randomisation" in verdict.absent:
        sentences.append(
            "Other models of its kind, trained on shuffled labels, say, and given as others=[...]: set "
            "against them, provisional trust becomes trust or goes."
        )
    return sentences


FILLS = {
    "token": "a neutral token",
    "mean": "their mean over the reference rows",
    "marginal": "values of reference rows",
    "summary": "values of a few reference rows that stand for all",
    "blur": "a blurred copy",
    "uniform_noise": "noise",
    "noisy_linear": "what their surroundings suggest",
}
"""What removed features become, in words."""


def _removed(task: Task) -> str:
    if task.modality == "units":
        return f"units are off: {task.off}" if isinstance(task, Generation) else "units inside it are off"
    return f"replaced by {FILLS.get(task.fill.name, task.fill.name)}"


def _limits(audit: Audit) -> list[str]:
    """What the verdict does not cover."""
    task, verdict = audit.task, audit.verdict
    sentences = [
        f"It rests on {verdict.samples} samples, drawn by a fixed rule from those given, and does not "
        "cover inputs unlike them.",
        "Trusted means: its maps name features this model uses, and name others for another model. It does "
        "not mean that they name all of them or in the right proportion, that the model is right, or that a "
        "person understands the map. A map mixed half and half with a wrong one is still informative; only "
        "the grade tells it apart.",
        "Removal evaluates the model on inputs with features missing "
        f"({_removed(task)}); such inputs do not occur in practice.",
        f"The chance that a method is called trusted without deserving it is kept at {SHOWN:.0%} for each "
        "method, against the controls listed here; a cheat nobody thought of is not covered.",
    ]
    if "randomisation" in verdict.absent:
        sentences.append("It was not tested whether the maps explain this model and not another one.")
    return sentences
