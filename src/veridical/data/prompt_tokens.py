"""Texts as tokens and where each of them stands, by any tokenizer that can say so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from veridical.data.prompt_units import Span
from veridical.errors import InputError


@dataclass(frozen=True)
class Tokens:
    """A text, its tokens, and the characters of each; a token that was added stands for none."""

    text: str
    """The text."""
    ids: tuple[int, ...]
    """Its tokens."""
    offsets: tuple[Span, ...]
    """The characters of each token, from and to."""


def tokenized(tokenizer: Any, text: str, prompt: int, special: bool = True) -> Tokens:
    """The tokens of a text; refuses where they do not give the text back.

    A tokenizer of transformers tells the characters of a token. Any other with `encode` and `decode` will do
    if the texts of single tokens, joined, are the text.
    """
    if getattr(tokenizer, "is_fast", False):
        made = tokenizer(text, add_special_tokens=special, return_offsets_mapping=True)
        ids, offsets = tuple(made["input_ids"]), tuple((a, b) for a, b in made["offset_mapping"])
        own = [token for token, (start, stop) in zip(ids, offsets, strict=True) if stop > start]
        back = str(tokenizer.decode(own, clean_up_tokenization_spaces=False))
        if back.lstrip() == text.lstrip():
            return Tokens(text, ids, offsets)
        raise _not_round(text, back, prompt)
    try:
        ids = tuple(int(token) for token in tokenizer.encode(text))
        pieces = [str(tokenizer.decode([token])) for token in ids]
    except (AttributeError, TypeError) as error:
        raise InputError(
            f"a tokenizer is one of transformers, or has encode(text) and decode(tokens); this "
            f"{type(tokenizer).__name__} does not: {error}"
        ) from error
    except (KeyError, ValueError) as error:
        raise InputError(f"the tokenizer does not know a word of prompt {prompt}: {error}") from error
    if "".join(pieces) != text:
        raise _not_round(text, "".join(pieces), prompt)
    ends = [sum(map(len, pieces[: place + 1])) for place in range(len(pieces))]
    return Tokens(text, ids, tuple((e - len(p), e) for p, e in zip(pieces, ends, strict=True)))


def _not_round(text: str, back: str, prompt: int) -> InputError:
    at = next(
        (i for i, (a, b) in enumerate(zip(text, back, strict=False)) if a != b), min(len(text), len(back))
    )
    return InputError(
        f"the tokens of prompt {prompt} do not give its text back: {text[max(0, at - 20) : at + 20]!r} "
        f"became {back[max(0, at - 20) : at + 20]!r}, so units cannot be told apart; write the text as the "
        "tokenizer does"
    )


def continued(tokenizer: Any, prompt: Tokens, answer: str, number: int, special: bool) -> tuple[int, ...]:
    """The tokens of an answer as they follow the prompt."""
    if not isinstance(answer, str) or not answer:
        raise InputError(
            f"the answer to prompt {number} is empty; give the text whose probability is explained"
        )
    whole = tokenized(tokenizer, prompt.text + answer, number, special).ids
    if whole[: len(prompt.ids)] == prompt.ids and len(whole) > len(prompt.ids):
        return whole[len(prompt.ids) :]
    # the last word of the prompt and the first of the answer would be one token
    return tokenized(tokenizer, answer, number, special=False).ids
