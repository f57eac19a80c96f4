"""What several tests of explainers watch."""

from __future__ import annotations

from typing import Any

import pytest

from veridical.explainers.graph.follow import Follower
from veridical.explainers.graph.plan import Plan


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happened at each run of a followed model: "followed" or "repeated"."""
    seen: list[str] = []
    enter, call = Follower.__enter__, Plan.__call__

    def entering(self: Follower) -> Any:
        seen.append("followed")
        return enter(self)

    def repeating(self: Plan, *given: Any) -> Any:
        seen.append("repeated")
        return call(self, *given)

    monkeypatch.setattr(Follower, "__enter__", entering)
    monkeypatch.setattr(Plan, "__call__", repeating)
    return seen
