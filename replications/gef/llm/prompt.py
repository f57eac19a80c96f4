"""What a language model is asked, and how its reply is read."""

from __future__ import annotations

import json
import string
from collections.abc import Iterator, Sequence
from typing import Any

MODELS = ("AI model", "machine learning model", "neural network", "text classifier")
CHANGES = ("perturbed with noise", "adversarially manipulated", "rewired", "disturbed at random")
ASKS = ("Name", "List", "Identify", "Select")
TOKENS = ("tokens", "words")
NAMES = ("token", "word", "text")
WORDINGS = len(MODELS) * len(CHANGES) * len(ASKS) * len(TOKENS)
"""How many prompts there are for one message: every choice of synonyms."""


def build_prompt(
    text: str,
    about: str,
    labels: Sequence[str],
    target: int,
    before: float,
    after: float,
    share: float,
    k: int,
    wording: int = 0,
) -> str:
    """The question to a language model about one text.

    `before` and `after` are the classifier's probabilities of the class `target` without and with noise,
    `share` how far along the noise path it is (0: no noise, and before = after), `wording` picks the
    synonyms.
    """
    model, rest = MODELS[wording % len(MODELS)], wording // len(MODELS)
    change, rest = CHANGES[rest % len(CHANGES)], rest // len(CHANGES)
    ask, rest = ASKS[rest % len(ASKS)], rest // len(ASKS)
    unit = TOKENS[rest % len(TOKENS)]
    if share > 0:
        surer = "more" if after > before else "less" if after < before else "neither more nor less"
        state = (
            f"The {model} was {how_much(share)} {change}. Its certainty of the class '{labels[target]}' was "
            f"{before:.3f} before and is {after:.3f} now: it is {surer} certain."
        )
    else:
        state = f"The {model} is unchanged. Its certainty of the class '{labels[target]}' is {after:.3f}."
    example = json.dumps({"tokens": {str(rank): "..." for rank in range(1, min(k, 2) + 1)}})
    return (
        f"A {model} was trained to {about}. The classes are: {', '.join(labels)}.\n{state}\n"
        f"{ask} the {k} {unit} of the text below that matter most for this certainty, ranked from 1 (most "
        f"important) to {k}. Use only {unit} that occur in the text. Answer with JSON only, in the form "
        f"{example}\n\nText: {text}\n\nJSON:"
    )


def how_much(share: float) -> str:
    """The strength of the noise in words, by thirds of the path."""
    return "slightly" if share <= 1 / 3 else "moderately" if share <= 2 / 3 else "heavily"


def parse_reply(reply: str, k: int) -> list[str] | None:
    """The words a reply ranks, most important first and at most k; None if it holds no such JSON.

    Read are an object from rank to word, a list of words, a list of {"rank", "token"}, and any of these
    under one key. Words are lower-cased and stripped of punctuation.
    """
    for value in _json_values(reply):
        try:
            # a phrase is so many words, or one reply could name the whole text
            words = [part for word in _words(value) for part in tidy(word).split()]
        except RecursionError:
            continue
        if words:
            return list(dict.fromkeys(words))[:k]
    return None


def tidy(word: str) -> str:
    """Lower case, without punctuation at either end or inside."""
    return word.lower().translate(str.maketrans("", "", string.punctuation)).strip()


def _json_values(reply: str) -> Iterator[Any]:
    decoder, at = json.JSONDecoder(), 0
    while at < len(reply):
        if reply[at] in "{[":
            try:
                value, at = decoder.raw_decode(reply, at)
            except (ValueError, RecursionError):
                at += 1
                continue
            yield value
        else:
            at += 1


def _words(value: Any) -> list[str]:
    if isinstance(value, dict):
        ranks = {rank: value[name] for name in value if (rank := _rank(name)) is not None}
        if ranks:
            return [word for rank in sorted(ranks) if isinstance(word := ranks[rank], str)]
        for held in value.values():
            if isinstance(held, dict | list) and (words := _words(held)):
                return words
        return []
    if not isinstance(value, list):
        return []
    if all(isinstance(item, dict) for item in value):
        rows = [
            (_rank(item.get("rank")), next((item[n] for n in NAMES if n in item), None)) for item in value
        ]
        known = [(place if rank is None else rank, word) for place, (rank, word) in enumerate(rows)]
        return [word for _, word in sorted(known, key=lambda row: row[0]) if isinstance(word, str)]
    return [item for item in value if isinstance(item, str)]


def _rank(name: Any) -> int | None:
    text = str(name).strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else None
