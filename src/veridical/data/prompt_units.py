"""Parts of a prompt that can be switched off: where they lie in the text, and which tokens they are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from operator import index
from typing import Literal

from veridical.errors import InputError

Span = tuple[int, int]
"""Where a part begins and where it ends, the end not included."""
UnitKind = Literal["token", "word", "sentence", "passage", "example", "turn"]

_ENDS = {
    "word": re.compile(r"(?<=\s)(?=\S)"),
    # full stops of Chinese and Japanese have no blank behind them
    "sentence": re.compile(
        r"(?<=[.!?])(?:[\"')\]]*)\s+(?=\S)|(?<=[。！？])[」』）]*\s*(?=[^\s」』）])|\n\s*(?=\S)"
    ),
    "passage": re.compile(r"\n[ \t\r]*\n\s*(?=\S)"),
}
_ENDS["example"] = _ENDS["passage"]


def parts(text: str, kind: str, start: int = 0, stop: int | None = None) -> list[Span]:
    """The words, sentences or passages of a text; what is blank behind a part belongs to it.

    >>> parts("It rains. Take a coat!", "sentence")
    [(0, 10), (10, 22)]
    """
    stop = len(text) if stop is None else stop
    inside = text[start:stop]
    blank = len(inside) - len(inside.lstrip())
    cuts = [start + blank, *(start + found.end() for found in _ENDS[kind].finditer(inside)), stop]
    cuts = sorted({cut for cut in cuts if start + blank <= cut <= stop})
    found = [(one, two) for one, two in pairwise(cuts) if text[one:two].strip()]
    # the examples of a few-shot prompt end with a question that is no example
    return found[:-1] if kind == "example" else found


def check_spans(spans: Sequence[Span], length: int, what: str, prompt: int) -> list[Span]:
    """The caller's own spans in order, or what is wrong with them."""
    try:
        ordered = sorted((index(start), index(stop)) for start, stop in spans)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"the units of prompt {prompt} are pairs (start, stop) of {what}s; got {spans!r:.80}"
        ) from error
    for start, stop in ordered:
        if not 0 <= start < stop <= length:
            raise InputError(
                f"unit ({start}, {stop}) of prompt {prompt} does not lie within its {length} {what}s"
            )
    for one, two in pairwise(ordered):
        if two[0] < one[1]:
            raise InputError(
                f"units {one} and {two} of prompt {prompt} overlap; a {what} belongs to one unit at most"
            )
    return ordered


def unit_of_tokens(
    text: str, offsets: Sequence[Span], spans: Sequence[Span], exact: bool, prompt: int
) -> list[int]:
    """The unit of each token, -1 for none: that of its first character that is no blank.

    `exact` refuses a unit that begins or ends within a token, as one of the caller's own might.
    """
    owner = [-1] * len(text)
    for number, (start, stop) in enumerate(spans):
        owner[start:stop] = [number] * (stop - start)
    out = []
    for start, stop in offsets:
        owners = [owner[at] for at in range(start, stop) if not text[at].isspace()] or owner[start:stop]
        if exact and len(set(owners)) > 1:
            raise InputError(
                f"a unit of prompt {prompt} begins or ends inside the token {text[start:stop]!r}; "
                "move its edge"
            )
        out.append(owners[0] if owners else -1)
    for number, (start, stop) in enumerate(spans):
        if number not in out:
            raise InputError(f"unit {text[start:stop]!r:.60} of prompt {prompt} has no token of its own")
    return out
