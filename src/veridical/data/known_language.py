"""Known answers of language models: a prompt of which one sentence decides, and heads with known work."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from veridical.core import key as keyed
from veridical.core.key import Key
from veridical.data.generation import Generation
from veridical.data.known_answers import EVALUATED, KnownAnswer
from veridical.data.networks import HEADS, CausalTransformer, InductionTransformer
from veridical.data.rows import Data, pick, stored
from veridical.data.switching import switch
from veridical.errors import InputError
from veridical.models.inner_units import Counterfactual, Heads
from veridical.models.prompts import Off


class WordTokenizer:
    """Cuts a text into pieces of a fixed list, the longest that fits first; blanks belong to the pieces.

    >>> WordTokenizer(["so ", "it ", "is"]).encode("so it is")
    [0, 1, 2]
    """

    def __init__(self, pieces: Sequence[str]) -> None:
        self.pieces = tuple(pieces)
        self._numbers = {piece: number for number, piece in enumerate(self.pieces)}
        longest_first = sorted(self.pieces, key=len, reverse=True)
        self._cut = re.compile("|".join(map(re.escape, longest_first)) + "|.", re.DOTALL)

    def encode(self, text: str) -> list[int]:
        """The number of each piece."""
        found = self._cut.findall(text)
        strange = [piece for piece in found if piece not in self._numbers]
        if strange:
            raise InputError(f"{strange[0]!r} in {text[:60]!r} is no piece of this tokenizer: {self.pieces}")
        return [self._numbers[piece] for piece in found]

    def decode(self, tokens: Sequence[int]) -> str:
        """The text that these pieces make."""
        return "".join(self.pieces[int(token)] for token in tokens)


# --- one sentence decides -------------------------------------------------------------------------------

SENTENCES = 6
SPEAKERS = ("Judge", "Ann", "Bob", "Cem", "Dora", "Emil", "Fay", "Gus", "Hana", "Ivo")
COLOURS = ("red", "blue", "green", "black", "white", "brown")
NOTHING = "unknown"
"""The answer where no judge speaks."""
PROMPT_WORDS = (
    "...",
    "says ",
    ". ",
    "So ",
    "it ",
    "is ",
    *(f"{name} " for name in SPEAKERS),
    *COLOURS,
    NOTHING,
)
"""The vocabulary; its first word is the one that stands in for others."""
PIECES = 4
"""Tokens of a sentence."""


def prompt_task(samples: int | None = None, seed: int = 0, off: Off = "fill") -> KnownAnswer:
    """Six sentences, each by another speaker with a colour, and a model that answers with the judge's.

    The foil is the colour of the sentence behind the judge's. The model was trained to stay right without
    other sentences, and to answer "unknown" without the judge's; the truth is 1 on that and 0 elsewhere.
    A sentence that is off is filled, dropped, or zeros.
    """
    every = torch.arange(EVALUATED)
    ids = pick(Data(every, every, every, every), "known/prompt", samples, seed)
    speakers, colours, place = drawn_sentences(ids)
    texts = written(speakers, colours)
    behind = (place + 1) % SENTENCES
    answers, foils = (_words(colours.gather(1, at[:, None])[:, 0]) for at in (place, behind))
    here = torch.nn.functional.one_hot(place, SENTENCES).bool()
    task = Generation(
        prompt_model(),
        WordTokenizer(PROMPT_WORDS),
        [" ".join(parts) + " " for parts in texts],
        answers,
        foils=foils,
        questions=["So it is "] * len(texts),
        off=off,
        ids=ids,
        masks=here,
        name="known/prompt",
    )
    return KnownAnswer(
        task,
        here.float(),
        winners=("occlusion", "exact_shapley", "integrated_gradients", "lime"),
        losers=("random",),
        why="only the judge's sentence decides: the model was trained to do without the others",
    )


def drawn_sentences(ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Who speaks (N, S), the colours they name (N, S), and which sentence is the judge's (N,).

    Nobody else names the judge's colour: no other sentence may stand in for it.
    """
    key = Key(0) / "known" / "prompt"
    speakers = keyed.permutation(key / "speakers", ids, 0, len(SPEAKERS) - 1)[:, :SENTENCES] + 1
    place = keyed.integers(key / "place", ids, 0, 1, SENTENCES)
    named = keyed.integers(key / "said", ids, 0, 1, len(COLOURS))
    apart = 1 + keyed.integers(key / "others", ids, 0, SENTENCES, len(COLOURS) - 1)
    colours = (named + apart) % len(COLOURS)
    return speakers.scatter(1, place, 0), colours.scatter(1, place, named), place[:, 0]


def written(speakers: Tensor, colours: Tensor) -> list[list[str]]:
    """The sentences of each prompt."""
    return [
        [f"{SPEAKERS[who]} says {COLOURS[what]}." for who, what in zip(*row, strict=True)]
        for row in zip(speakers.tolist(), colours.tolist(), strict=True)
    ]


def _words(colours: Tensor) -> list[str]:
    return [COLOURS[number] for number in colours.tolist()]


def prompt_model() -> CausalTransformer:
    """The shipped model."""
    network = CausalTransformer(len(PROMPT_WORDS), PIECES * SENTENCES + 4, 32)
    return stored("prompt", network)


# --- heads with known work ------------------------------------------------------------------------------

PAIRS = 4
NAMES, NUMBERS = 8, 8
INDUCTION_WORDS = (
    "> ",
    *(f"{letter} " for letter in "ABCDEFGH"),
    *(f"{number} " for number in range(NUMBERS)),
)
INDUCTION_LENGTH = 2 * PAIRS + 3
Change = Literal["value", "key", "both"]


def induction_heads(
    samples: int | None = None, seed: int = 0, change: Change = "both", turn: tuple[int, int] = (1, 2)
) -> KnownAnswer:
    """Which heads answer `> A 3 B 7 C 1 D 5 B` with 7: half the pairs change the 7, half the B before it.

    There may be one kind of change alone, and the two heads stand at other places (`turn`).

    A head that is off has its value in a paired prompt. Where the value before the answer was changed, only
    the induction head matters, which copies it; where the key was changed, the previous-token head matters
    as much, without which no key matches. So there is no truth of a head: only of a head and a change.
    """
    if change not in ("value", "key", "both"):
        raise InputError(f"change is 'value', 'key' or 'both'; got {change!r}")
    every = torch.arange(EVALUATED)
    ids = pick(Data(every, every, every, every), "known/induction", samples, seed)
    keyed_rows = ids % 2 == 1 if change == "both" else torch.full_like(ids, change == "key").bool()
    rows, place, unused = drawn_pairs(ids)
    at = torch.where(keyed_rows, place, place + 1)[:, None]
    paired = rows.scatter(1, at, unused.gather(1, keyed_rows.long()[:, None]))
    answers = rows.gather(1, place[:, None] + 1)[:, 0]
    other = rows.gather(1, 2 + (place[:, None] + 1) % (2 * PAIRS))[:, 0]
    foils = torch.where(keyed_rows, other, paired.gather(1, place[:, None] + 1)[:, 0])
    model, tokenizer = (
        InductionTransformer(len(INDUCTION_WORDS), INDUCTION_LENGTH, turn),
        WordTokenizer(INDUCTION_WORDS),
    )
    clean, changed = (
        Generation(
            model,
            tokenizer,
            [tokenizer.decode(row) for row in held.tolist()],
            [INDUCTION_WORDS[word] for word in answers.tolist()],
            foils=[INDUCTION_WORDS[word] for word in foils.tolist()],
            units="word",
            off="zero",
            ids=ids,
        )
        for held in (rows, paired)
    )
    first, second = turn[0] % HEADS, HEADS + turn[1] % HEADS
    truth = torch.zeros(len(ids), 2 * HEADS)
    truth[:, second] = 1.0
    truth[keyed_rows, first] = 1.0
    task = switch(clean, Heads(), Counterfactual(changed))
    return KnownAnswer(
        task.changed(alone=True, masks=truth > 0, name="known/induction"),
        truth,
        winners=("occlusion", "exact_shapley", "input_x_gradient", "integrated_gradients"),
        losers=("random",),
        why="the induction head copies the value, and finds it by what the previous-token head wrote",
    )


def drawn_pairs(ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows `> key value ... key`, the place of the repeated key, and a value and a key that do not occur."""
    key = Key(0) / "known" / "induction"
    keys = 1 + keyed.permutation(key / "keys", ids, 0, NAMES)
    values = 1 + NAMES + keyed.permutation(key / "values", ids, 0, NUMBERS)
    repeated = keyed.integers(key / "asked", ids, 0, 1, PAIRS)
    pairs = torch.stack([keys[:, :PAIRS], values[:, :PAIRS]], 2).flatten(1)
    rows = torch.cat([torch.zeros_like(repeated), pairs, keys.gather(1, repeated)], 1)
    return rows, 1 + 2 * repeated[:, 0], torch.stack([values[:, PAIRS], keys[:, PAIRS]], 1)
