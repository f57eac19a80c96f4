"""One result in the making: its model is looked at once, its rows are counted, late checks are gathered."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from veridical.model.cost import Cost
from veridical.model.late_checks import Look, collecting

if TYPE_CHECKING:
    from veridical.model.predictor import Predictor


class Question(AbstractContextManager["Question"]):
    """While it is open, sessions of this thread need not look again whether the model has changed."""

    unchecked: list[Look]
    """What is still to be looked at when the result is read."""

    def __init__(self, predictor: Predictor, later: bool = True) -> None:
        self._later = later
        self._source = predictor.source
        self._tally = predictor.meter.here
        self._before = replace(self._tally)

    def __enter__(self) -> Question:
        own = self._source.here()
        gather: AbstractContextManager[list[Look]] = collecting() if self._later else nullcontext([])
        self._collecting = gather
        self.unchecked = self._collecting.__enter__()
        own.questions += 1
        try:
            if own.questions == 1:
                self._source.check(thorough=True)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *error: Any) -> None:
        self._source.here().questions -= 1
        self._collecting.__exit__(*error)

    @property
    def cost(self) -> Cost:
        """Rows asked since it was opened."""
        now, before = self._tally, self._before
        return Cost(now.forward - before.forward, now.backward - before.backward)

    @property
    def halvings(self) -> int:
        """How often a chunk was halved since then because memory ran out."""
        return self._tally.halvings - self._before.halvings
