"""Scores that change while their version does not would be mixed with old ones in every study's folder."""

import pytest

from tests.study.golden import current, entries, golden_task, read, verdict


@pytest.fixture(scope="module")
def task():
    return golden_task()


def test_no_score_changes_without_its_version(task):
    golden = read()
    names = entries(task)
    assert len(names) > 50
    wrong = []
    for kind, name in names:
        said = verdict(current(kind, name, task), golden.get(f"{kind}/{name}"))
        wrong += [f"{kind} '{name}' {said}"] * (said is not None)
    assert not wrong, "\n".join(wrong)


def test_a_changed_score_is_noticed(task):
    now = current("metric", "sparseness", task)
    assert verdict(now, now) is None
    moved = {**now, "values": [value + 1e-3 for value in now["values"]]}
    assert "still calls itself version" in str(verdict(moved, now))
    lost = {**now, "values": [float("nan"), *now["values"][1:]]}
    assert "still calls itself version" in str(verdict(lost, now))
    assert "golden scores are of" in str(verdict({**moved, "version": now["version"] + 1}, now))
    assert "no golden scores yet" in str(verdict(now, None))
