"""Weight noise that a task keeps from one score to the next: it is the same for every explainer and form."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from veridical.gef.noise_prefetch import SMALLEST
from veridical.model.noisy_copy import Layout, Noise
from veridical.random.keyed import Key

MOST = 2**24
"""Numbers of noise that a task keeps: 64 MB."""


class KeptNoise:
    """The noise of a small model by key: to draw it may take as long as to run the model under it.

    Kept is what whole scores draw, the last ones for which there is room together; a score that would need
    more keeps nothing. Noise depends on keys and on the places of the weights, not on their values.
    """

    def __init__(self) -> None:
        self._laid: Any = None
        self._drawn: dict[Key, Noise] = {}

    def of(self, layout: Layout, keys: Iterable[Key]) -> Callable[[Key], Noise] | None:
        """`layout.noise` for a score that will ask for these keys, each drawn once; None if none is kept."""
        most = MOST // layout.size if layout.size < SMALLEST else 0
        coming = set(islice(keys, most + 1))
        if len(coming) > most:
            return None
        runs = zip(layout.runs, layout.values, strict=True)
        laid = [(run.names, run.shapes, value.device, value.dtype) for run, value in runs]
        if laid != self._laid or len(coming | self._drawn.keys()) > most:
            self._laid, self._drawn = laid, {}
        drawn = self._drawn

        def noise(key: Key) -> Noise:
            known = drawn.get(key)
            if known is None:
                known = layout.noise(key)
                if key in coming:
                    drawn[key] = known
            return known

        return noise

    def __getstate__(self) -> dict[str, Any]:
        # whoever gets the task draws again
        return {"_laid": None, "_drawn": {}}
