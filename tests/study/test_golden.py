"""Scores that change while their version does not would be mixed with old ones in every study's folder."""

import json

import pytest

from tests.study import golden
from tests.study.golden import RECORD, current, entries, golden_task, read, verdict, write


@pytest.fixture(scope="module")
def task():
    return golden_task()


def test_no_score_changes_without_its_version(task):
    written = read()
    known = [(kind, name) for kind, name in entries(task) if f"{kind}/{name}" in written]
    assert len(known) > 50
    assert len(known) == len(written), "golden scores of what is no longer there"
    wrong = []
    for kind, name in known:
        said = verdict(current(kind, name, task), written[f"{kind}/{name}"])
        wrong += [f"{kind} '{name}' {said}"] * (said is not None)
    assert not wrong, "\n".join(wrong)


@pytest.mark.extras  # a new metric is one new file; its scores are written down before a release
def test_everything_has_golden_scores(task):
    missing = [name for name in map("/".join, entries(task)) if name not in read()]
    assert not missing, f"{', '.join(missing)}: no golden scores yet; run {RECORD}"


def test_only_what_is_new_or_changed_is_written(task, tmp_path, monkeypatch):
    monkeypatch.setattr(golden, "FILE", tmp_path / "golden.json")
    monkeypatch.setattr(golden, "entries", lambda task: [("metric", "sparseness"), ("metric", "complexity")])
    assert write() == ["metric/sparseness", "metric/complexity"]
    first = read()
    assert write() == []
    changed = {"version": 1, "values": [9.0, 9.0, 9.0]}
    nearly = {
        **first["metric/complexity"],
        "values": [v + 1e-9 for v in first["metric/complexity"]["values"]],
    }
    golden.FILE.write_text(json.dumps({"metric/sparseness": changed, "metric/complexity": nearly}))
    assert write(new_only=True) == []
    assert read()["metric/sparseness"] == changed
    assert write() == ["metric/sparseness"]
    assert read() == {**first, "metric/complexity": nearly}


def test_a_changed_score_is_noticed(task):
    now = current("metric", "sparseness", task)
    assert verdict(now, now) is None
    moved = {**now, "values": [value + 1e-3 for value in now["values"]]}
    assert "still calls itself version" in str(verdict(moved, now))
    lost = {**now, "values": [float("nan"), *now["values"][1:]]}
    assert "still calls itself version" in str(verdict(lost, now))
    assert "golden scores are of" in str(verdict({**moved, "version": now["version"] + 1}, now))
    assert "no golden scores yet" in str(verdict(now, None))
