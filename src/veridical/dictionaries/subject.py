"""One dictionary on a bench: what metrics are asked about."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from veridical.concepts.dictionary import Dictionary
from veridical.dictionaries.bench import Bench


class Subject:
    """A dictionary on a bench, with what several metrics need of it, found once."""

    def __init__(self, dictionary: Dictionary, bench: Bench, sibling: Dictionary | None = None) -> None:
        self.dictionary, self.bench, self.sibling = dictionary.to(bench.train.device), bench, sibling

    @cached_property
    def codes(self) -> Tensor:
        """Codes (m, atoms) of the test rows."""
        return self._codes(self.bench.test)

    @cached_property
    def train_codes(self) -> Tensor:
        """Codes of the train rows that probes read."""
        return self._codes(self.bench.train[: self.bench.probe_rows])

    def _codes(self, rows: Tensor) -> Tensor:
        return torch.cat([self.dictionary.encode(part) for part in rows.split(8192)])
