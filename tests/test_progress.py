"""The line of progress of a single call: only at a terminal, only after a while, never beside a bar."""

from __future__ import annotations

import io
import time

import pytest
import torch

import veridical as vd
from veridical.core import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def slow(x: torch.Tensor) -> torch.Tensor:
    time.sleep(0.1)
    return torch.stack([x[:, 0], -x[:, 1]], 1)


def test_a_long_score_at_a_terminal_shows_its_rows_and_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    task = vd.Task(slow, torch.rand(4, 6))
    for seconds, seen in ((60.0, False), (0.02, True)):
        monkeypatch.setattr(progress, "SHOW_AFTER", seconds)
        for stream, shown in ((Terminal(), seen), (io.StringIO(), False)):
            monkeypatch.setattr("sys.stderr", stream)
            vd.score("pixel_flipping", task, torch.rand(4, 6))
            assert ("scoring given by pixel_flipping, 4 samples: " in stream.getvalue()) is shown
            assert (" rows, 0 s" in stream.getvalue()) is shown
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    for _ in progress.track([1], "a bar"):
        vd.score("pixel_flipping", task, torch.rand(4, 6))
    assert "a bar" in terminal.getvalue()
    assert "scoring" not in terminal.getvalue()
