"""SIGKILL at any moment loses at most the cells in flight, and workers do not outlive their runner."""

from typing import Any

from scripts.kill_study import files, kill_often

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
