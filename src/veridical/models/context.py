"""What one call hands down: the key of its draws, its plan, its counts, and what is noticed on the way."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from torch import Tensor

from veridical.core.key import Key
from veridical.errors import warn
from veridical.models.cost import Cost, Tally

if TYPE_CHECKING:
    from veridical.models.plan import Plan
    from veridical.models.predictor import Predictor

T = TypeVar("T")


MANY_ROWS = 100_000
"""Rows beyond which a call of the user's says so before it evaluates them."""


class Memo:
    """What one call has computed, by the task or predictor it belongs to; forgotten with the call.

    Explanations and scores made with one memo evaluate once what they have in common; its rows
    count where they were evaluated first. Two calls never share, so what a result costs by itself does not
    depend on what came before. For one thread. Where it `announces`, many rows are said before they are
    evaluated, once.
    """

    def __init__(self, announces: bool = False) -> None:
        self._kept: WeakKeyDictionary[Any, dict[Hashable, Any]] = WeakKeyDictionary()
        self._announces = announces
        self._before: int | None = None

    def expect(self, tally: Tally, rows: int, words: Callable[[], str]) -> None:
        """Say that the call goes on to many rows, and what takes them, unless it has been said."""
        if not self._announces:
            return
        self._before = tally.forward if self._before is None else self._before
        total = tally.forward - self._before + rows
        if total > MANY_ROWS:
            self._announces = False
            warn(f"this call evaluates {total:,} rows of the model or more: {words()}")

    def once(self, owner: object, name: Hashable, make: Callable[[], T]) -> T:
        """What `make` gives, or gave before to the same owner and name."""
        kept = self._kept.setdefault(owner, {})
        if name not in kept:
            kept[name] = make()
        found: T = kept[name]
        return found

    def found(self, owner: object, name: Hashable) -> Any:
        """What has been computed for an owner under a name, or None."""
        return self._kept.get(owner, {}).get(name)


@dataclass(frozen=True, eq=False)
class Context:
    """One explanation or score in the making; handed down explicitly, one per call.

    `Explainer.attribute(task, context)` and `Metric.evaluate(task, explanation, context)` read the key of
    their draws from it. For a call by hand `Context(Key(0))` is enough.
    """

    key: Key = Key(0)  # noqa: RUF009 (frozen)
    """What keyed draws follow."""
    plan: Plan | None = None
    """How the model is run."""
    tally: Tally | None = None
    """What this thread has evaluated so far."""
    before: Tally | None = None
    """What it had evaluated when the call began."""
    halves: list[Tensor] | None = None
    """Where an explainer that draws notes how far the halves of its draws agree; None: nobody reads it."""
    notice: Callable[[Any, Any, Tensor], None] | None = None
    """Told of the maps (task, space, values) that a metric has made."""
    memo: Memo = field(default_factory=Memo)
    """What has been computed in this call so far."""

    @classmethod
    def begun(cls, predictor: Predictor, key: Key, memo: Memo | None = None) -> Context:
        """The context of a call that begins now; refuses where the caller's model has changed.

        With `memo` it is a part of a larger call and shares what that one has computed.
        """
        predictor.source.check()
        tally = predictor.meter.here
        return cls(key, predictor.plan, tally, replace(tally), memo=memo or Memo())

    def with_key(self, key: Key) -> Context:
        """The same call with another key."""
        return replace(self, key=key)

    @property
    def cost(self) -> Cost:
        """Rows evaluated since the call began."""
        now, before = self.tally, self.before
        if now is None or before is None:
            return Cost()
        rows = now.rows - before.rows
        return Cost(now.forward - before.forward, now.backward - before.backward, rows)

    @property
    def halvings(self) -> int:
        """How often a chunk was halved since then because memory ran out."""
        return 0 if self.tally is None or self.before is None else self.tally.halvings - self.before.halvings
