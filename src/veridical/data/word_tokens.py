"""A tokenizer of a few whole words, for language models that are made here."""

from __future__ import annotations

import re
from collections.abc import Sequence

from veridical.errors import InputError


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
