"""Prompts as plain data: the text in the colours of its units, sentence by sentence, and the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from veridical.data.generation import Generation
from veridical.data.prompt_checks import PromptChecks
from veridical.data.prompt_texts import Prompt, parts
from veridical.report.numbers import plain
from veridical.values.task import Task

LONGEST_PIECE = 400
"""Characters shown of one unit; the middle of a longer one is left out."""
LONGEST_PROMPT = 400
"""Units shown of one prompt."""
FINE = ("token", "word")
"""Kinds of units that are small enough to be added up over sentences."""


def of_prompts(task: Task) -> bool:
    """Whether the samples are prompts whose parts are explained."""
    return isinstance(task, Generation) and task.space.n_features == max(len(p.units) for p in task.prompts)


def answer(task: Task, sample: int, checks: PromptChecks | None) -> dict[str, Any]:
    """What was answered, the foil, how likely the answer is against it, and what to beware of."""
    assert isinstance(task, Generation)
    given = task.answers[sample]
    told: dict[str, Any] = {
        "answer": given.text,
        "foil": given.foil,
        "response": plain(float(task.outputs[sample, 0])),
        "alone": None if checks is None else plain(float(checks.response_without[sample])),
        "beware": [] if checks is None else checks.flags(sample),
    }
    return told


def coloured(task: Task, sample: int, values: Sequence[float]) -> dict[str, Any]:
    """Sentences of pieces [text, share]; a share is None where no unit is, and 1 at the strongest unit.

    A sentence has a share of its own, the sum over its units, where these are finer than sentences.
    """
    assert isinstance(task, Generation)
    prompt, fine = task.prompts[sample], task.units in FINE
    groups = _grouped(prompt.text, _pieces(prompt)) if fine else [_pieces(prompt)]
    sums = [sum(values[piece.unit] for piece in group if piece.unit is not None) for group in groups]
    top, most = (max(map(abs, held), default=0.0) or 1.0 for held in (values, sums))
    sentences = [
        {
            "share": total / most if fine else None,
            "pieces": [[p.text, None if p.unit is None else values[p.unit] / top] for p in group],
        }
        for total, group in zip(sums, groups, strict=True)
    ]
    told: dict[str, Any] = plain({"sentences": sentences, "left": max(0, len(prompt.units) - LONGEST_PROMPT)})
    return told


class Piece(NamedTuple):
    """A piece of a prompt, its unit, if it is of one, and where it begins."""

    text: str
    unit: int | None
    start: int


def _pieces(prompt: Prompt) -> list[Piece]:
    """The text cut where units begin and end."""
    found, at = [], 0
    for unit, (start, stop) in enumerate(prompt.places[:LONGEST_PROMPT]):
        if start > at:
            found.append(Piece(_short(prompt.text[at:start]), None, at))
        found.append(Piece(_short(prompt.text[start:stop]), unit, start))
        at = stop
    if len(prompt.places) <= LONGEST_PROMPT and at < len(prompt.text):
        found.append(Piece(_short(prompt.text[at:]), None, at))
    return found


def _grouped(text: str, pieces: Sequence[Piece]) -> list[list[Piece]]:
    """Pieces by the sentence in which they begin."""
    starts = [start for start, _ in parts(text, "sentence")]
    groups: dict[int, list[Piece]] = {}
    for piece in pieces:
        groups.setdefault(sum(start <= piece.start for start in starts), []).append(piece)
    return list(groups.values())


def _short(text: str) -> str:
    if len(text) <= LONGEST_PIECE:
        return text
    half = LONGEST_PIECE // 2
    return f"{text[:half]} … {text[-half:]}"
