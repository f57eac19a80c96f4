"""The line that says how a long call stands: only where somebody looks, and only after a while."""

from __future__ import annotations

import io
import time
from types import SimpleNamespace

import pytest
import torch

import veridical as vd
from veridical import api
from veridical.core import progress
from veridical.core.progress import track, waiting


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    screen = Terminal()
    monkeypatch.setattr(progress, "PATIENCE", 0.02)
    for module in (api, progress):
        monkeypatch.setattr(module, "sys", SimpleNamespace(stderr=screen))
    return screen


def slow(x: torch.Tensor) -> torch.Tensor:
    time.sleep(0.08)
    return torch.stack([x[:, 0], -x[:, 1]], 1)


def test_a_long_score_tells_how_it_stands(terminal) -> None:
    task = vd.Task(slow, torch.rand(4, 6))
    vd.score("pixel_flipping", task, torch.rand(4, 6))
    told = terminal.getvalue()
    assert "scoring given by pixel_flipping, 4 samples: 0 s, " in told
    assert "rows asked" in told
    assert told.endswith("\r\x1b[K")


def test_nothing_is_said_where_nobody_looks_or_a_bar_is_there(terminal) -> None:
    with waiting("quietly", lambda: 0, show=False):
        time.sleep(0.06)
    for _ in track([1], "bar", show=True):
        with waiting("inside", lambda: 0):
            time.sleep(0.06)
    told = terminal.getvalue()
    assert "quietly" not in told
    assert "inside" not in told


def test_the_line_goes_and_the_lock_is_free_after_an_error(terminal) -> None:
    def breaks() -> None:
        with waiting("broken", lambda: 0):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        breaks()
    with waiting("after", lambda: 0):
        time.sleep(0.06)
    assert "after: 0 s" in terminal.getvalue()
