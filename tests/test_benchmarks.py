"""What the benchmarks count and write; how long anything takes is no test."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import veridical as vd
from benchmarks import gpu, metrics, scaling
from benchmarks.results import Results, markdown_table
from benchmarks.timing import Timing, bare, compare
from veridical.metrics import registry


def task_of(samples: int = 5, rows: int = 8) -> vd.Task:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 3))
    return vd.Task(model, torch.rand(samples, 1, 6, 6), plan=vd.Plan(rows=rows))


@pytest.mark.parametrize(
    "cost", [vd.models.Cost(20, 0), vd.models.Cost(20, 20), vd.models.Cost(33, 13), vd.models.Cost(3, 1)]
)
@pytest.mark.parametrize("batch", [None, 5])
def test_bare_evaluations_ask_as_many_rows_as_the_metric_did(cost, batch):
    task = task_of()
    run = bare(task, cost, batch)
    before = task.predictor.meter.cost
    run()
    assert task.predictor.meter.cost - before == cost


def test_a_comparison_has_the_cost_of_one_score():
    task = task_of()
    calls = []

    def work() -> vd.models.Cost:
        calls.append(1)
        return vd.score("max_sensitivity", task, "gradient", draws=2).cost

    timing = compare("max_sensitivity", work, task, rounds=1, clock="cpu")
    assert (timing.forward, timing.backward, timing.computed) == (15, 15, 15)
    assert len(calls) >= 2
    assert timing.overhead > 0
    assert compare("sparseness", lambda: vd.models.Cost(), task, rounds=1).forward == 0


def test_rows_that_fill_up_a_chunk_are_shown_beside_those_asked():
    task = task_of(samples=5)
    maps = vd.explain("gradient", task)
    timing = compare("completeness", lambda: vd.score("completeness", task, maps).cost, task, rounds=1)
    assert (timing.forward, timing.computed) == (5, 8)


def test_parts_of_a_run_on_a_gpu_leave_time_for_the_last():
    assert set(gpu.SHARES) < set(gpu.PARTS)
    assert sum(gpu.SHARES.values()) <= 1


@pytest.mark.parametrize("size", ["lenet", "resnet18"])
@pytest.mark.parametrize("brief", [False, True])
def test_bounded_settings_are_settings_that_exist(size, brief):
    for name, settings in metrics.settings(size, brief).items():
        assert registry.make(name, **settings).name == name
    assert set(gpu.UNSEEN) | set(gpu.SHORT) | set(gpu.LOSING) | set(gpu.CHANNELS_LAST) <= set(registry)


def test_rows_are_on_disk_as_soon_as_they_are_there(tmp_path):
    results = Results(tmp_path / "out", "cpu")
    results.timing("metrics", Timing("road", 9, 0, 0.25, 0.125, 16))
    line = json.loads((tmp_path / "out" / "results.jsonl").read_text())
    assert (line["what"], line["overhead"], line["machine"]["torch"]) == ("road", 2.0, torch.__version__)
    text = (tmp_path / "out" / "tables.md").read_text()
    assert "| road | 9 | 0 | 16 | 0.2500 | 0.1250 | 2.00 |" in text
    assert vd.__version__ in text
    assert not results.late
    assert Results(None, "cpu", seconds=-1).late
    results.begin(-1)
    assert results.late
    results.begin(None)
    assert not results.late
    assert markdown_table([{"a": 1, "b": 0.5}]) == ["| a | b |", "|---|---|", "| 1 | 0.5000 |"]


def test_a_picture_of_what_was_measured(tmp_path):
    rows = [
        {"axis": axis, "what": "road", "at": at, "seconds": at / 8, "mib": 200 + at, "device": "CPU"}
        for axis in ("samples", "workers")
        for at in (1, 2, 4)
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    scaling.picture([tmp_path / "rows.jsonl"], tmp_path / "out.svg")
    assert "<svg" in (tmp_path / "out.svg").read_text()
