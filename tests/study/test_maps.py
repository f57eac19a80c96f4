"""Finished maps in a file as the explainers of a study."""

from pathlib import Path

import numpy as np
import pytest

import veridical as vd
from veridical import study as studies


def test_finished_maps_are_scored_shard_by_shard_as_in_memory(tmp_path: Path) -> None:
    task = vd.tasks.load("digits", 8)
    maps = np.zeros((2000, 1, 8, 8), dtype="float32")  # in the order of the task's rows
    maps[task.ids] = vd.explain("saliency", task).maps().numpy()
    np.savez(tmp_path / "maps.npz", mine=maps, noise=np.random.default_rng(0).random(maps.shape))
    spec = {
        "tasks": ["digits"],
        "explainers": [f"{tmp_path}/maps.npz:mine", f"{tmp_path}/maps.npz:noise"],
        "metrics": ["pixel_flipping"],
        "samples": 8,
        "shard_size": 4,
    }
    found = studies.run(spec, tmp_path / "out", executor="in-process", progress=False)
    assert not found.failures
    mean = found.frame().groupby("explainer").value.mean()
    assert mean["maps.npz:mine"] == pytest.approx(vd.score("pixel_flipping", task, "saliency").mean())
    assert mean["maps.npz:mine"] < mean["maps.npz:noise"]
    spec["explainers"] = [f"{tmp_path}/maps.npz"]
    failed = studies.run(spec, tmp_path / "other", executor="in-process", progress=False).failures
    assert "holds maps of mine, noise; say which: maps.npz:mine" in failed[0].error
