"""SIGKILL at any moment loses at most the cells in flight, and workers do not outlive their runner."""

import os
import signal
import time
from typing import Any

import pytest

from scripts.kill_study import count, descendants, files, kill_often, start

HERE = "tests.study.user_code"
STUDY: dict[str, Any] = {
    "tasks": [{"code": f"{HERE}:whole", "samples": 12}],
    "explainers": ["gradient", "random"],
    "metrics": ["sparseness", {"code": f"{HERE}:Slow"}, {"name": "pixel_flipping"}],
    "seeds": [0, 1, 2],
    "shard_size": 3,
    "plan": {"rows": 8},
}


def test_a_study_killed_three_times_ends_like_one_left_alone(tmp_path):
    report = kill_often(STUDY, tmp_path, kills=3)
    assert report.cells == 72
    assert len(report.kills) == 3
    assert 0 < report.kills[0] <= report.kills[1] <= report.kills[2] < report.cells
    assert report.different == []
    assert report.recomputed == []
    assert len(files(tmp_path / "killed")) > report.cells
    # the comparison would notice a changed cell
    victim = next((tmp_path / "killed" / "cells").iterdir())
    victim.write_bytes(victim.read_bytes()[:-1])
    assert files(tmp_path / "whole") != files(tmp_path / "killed")


@pytest.mark.slow
def test_workers_end_with_their_runner(tmp_path):
    study = {**STUDY, "metrics": [{"code": f"{HERE}:Slow", "settings": {"seconds": 30.0}}], "seeds": [0]}
    process = start(study, tmp_path, "processes")
    try:
        deadline = time.monotonic() + 120
        workers: set[int] = set()
        while time.monotonic() < deadline and not list(tmp_path.glob("explanations/*.safetensors")):
            workers |= set(descendants(process.pid))
            time.sleep(0.02)
        workers |= set(descendants(process.pid))
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert len(workers) >= 2  # and Python's own tracker of resources
    # they are in the middle of a cell that takes half a minute, and do not finish it
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and any(os.path.exists(f"/proc/{pid}") for pid in workers):
        time.sleep(0.05)
    assert not any(os.path.exists(f"/proc/{pid}") for pid in workers)
    assert count(tmp_path) == 0
