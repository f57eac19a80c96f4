"""Product reviews in a small language of our own: the data of the task `reviews`.

A product review is one to three clauses. Most name a part of a product and judge it; a judgement may be
strengthened ("very"), and it may be negated ("not good"), which turns its opinion around, so that single
words do not settle the class. Other clauses say nothing about quality. All judgements of a review agree, and
it is known which words carry them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from veridical.core import key as keyed
from veridical.core.key import Key

THINGS = """
battery screen case cable handle lens speaker keyboard motor blade zip strap cushion lid charger button
manual fabric hinge filter pump wheel sensor box
""".split()
GOOD = """
good great excellent lovely sturdy reliable brilliant solid superb bright comfortable sharp
""".split()
BAD = "bad awful terrible flimsy useless noisy poor ugly faulty weak dull broken".split()
STRENGTH = ["very", "really", "quite", "truly", "rather"]
NEGATION = ["not", "never", "hardly"]
LINKS = ["is", "was", "feels", "seems", "looks"]
FILLERS = (
    "i bought it last week",
    "it arrived on a monday",
    "my sister owns the same one",
    "the parcel came with two batteries",
    "we use it in the kitchen",
    "this is my second order",
    "i keep it near the window",
    "the colour is blue",
)
JOINS = ["and", "also"]

PAD = "[pad]"
LENGTH = 24


def _vocabulary() -> tuple[str, ...]:
    plain = [*THINGS, *GOOD, *BAD, *STRENGTH, *NEGATION, *LINKS, *JOINS, "the", "this"]
    words = sorted({*plain, *(word for filler in FILLERS for word in filler.split())})
    return (PAD, *words)


VOCABULARY = _vocabulary()
WORD_IDS = {word: number for number, word in enumerate(VOCABULARY)}


@dataclass(frozen=True, eq=False)
class Reviews:
    """Token ids (N, LENGTH), 0 for padding; 1 for a positive review; and where the opinion stands."""

    tokens: Tensor
    labels: Tensor
    opinion: Tensor


def write_reviews(count: int, key: Key) -> Reviews:
    """Write `count` reviews; review i is the same whatever the count."""
    draws = keyed.bits(key / "reviews", torch.arange(count), 0, 40).tolist()
    tokens = torch.zeros(count, LENGTH, dtype=torch.int64)
    opinion = torch.zeros(count, LENGTH, dtype=torch.bool)
    labels = torch.zeros(count, dtype=torch.int64)
    for row, numbers in enumerate(draws):
        words, carries, labels[row] = _review(iter([number & 0xFFFF for number in numbers]))
        ids = torch.tensor([WORD_IDS[word] for word in words])
        tokens[row, : len(ids)] = ids
        opinion[row, : len(ids)] = torch.tensor(carries)
    return Reviews(tokens, labels, opinion)


def words_of(tokens: Tensor) -> list[list[str]]:
    """The words of each row of token ids."""
    return [[VOCABULARY[number] for number in row] for row in tokens.tolist()]


class _Numbers:
    """Takes choices from a row of random numbers, one each."""

    def __init__(self, numbers: object) -> None:
        self._next = numbers.__next__  # type: ignore[attr-defined]

    def choose(self, options: Sequence[str]) -> str:
        return options[self._next() % len(options)]

    def below(self, bound: int) -> int:
        return int(self._next() % bound)


def _review(numbers: object) -> tuple[list[str], list[bool], int]:
    draw = _Numbers(numbers)
    positive = draw.below(2)
    clauses = 1 + draw.below(3)
    judged = draw.below(clauses)  # at least this clause judges
    words: list[str] = []
    carries: list[bool] = []
    for clause in range(clauses):
        if clause:
            words.append(draw.choose(JOINS))
            carries.append(False)
        if clause == judged or draw.below(2):
            said, marks = _judgement(draw, bool(positive))
        else:
            said = draw.choose(FILLERS).split()
            marks = [False] * len(said)
        words += said
        carries += marks
    return words, carries, positive


def _judgement(draw: _Numbers, positive: bool) -> tuple[list[str], list[bool]]:
    negated = draw.below(3) == 0
    words = [draw.choose(("the", "this")), draw.choose(THINGS), draw.choose(LINKS)]
    carries = [False] * 3
    if negated:
        words.append(draw.choose(NEGATION))
        carries.append(True)
    if draw.below(2):
        words.append(draw.choose(STRENGTH))
        carries.append(False)
    words.append(draw.choose(GOOD if positive != negated else BAD))
    carries.append(True)
    return words, carries
