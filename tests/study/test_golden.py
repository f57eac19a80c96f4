"""Scores that change while their version does not would be mixed with old ones in every study's folder."""

import pytest

from scripts.renew_golden_scores import RECORD, current, entries, golden_task, read, verdict


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


def test_a_changed_score_is_noticed(task):
    now = current("metric", "sparseness", task)
    assert verdict(now, now) is None
    moved = {**now, "values": [value + 1e-3 for value in now["values"]]}
    assert "still calls itself version" in str(verdict(moved, now))
    lost = {**now, "values": [float("nan"), *now["values"][1:]]}
    assert "still calls itself version" in str(verdict(lost, now))
    assert "golden scores are of" in str(verdict({**moved, "version": now["version"] + 1}, now))
    assert "no golden scores yet" in str(verdict(now, None))
