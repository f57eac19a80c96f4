"""What runs on a Ray worker, as far as it needs no cluster."""

from __future__ import annotations

from types import SimpleNamespace

from veridical.study import ray_worker


def test_a_process_leaves_another_study_whether_or_not_it_worked_for_it(monkeypatch) -> None:
    closed: list[str] = []
    worked = SimpleNamespace(workshop=SimpleNamespace(close=lambda: closed.append("worked")))
    benches = {"idle": SimpleNamespace(workshop=None), "worked": worked}
    monkeypatch.setattr(ray_worker, "_benches", benches)
    ray_worker._leave()
    assert closed == ["worked"]
    assert benches == {}
