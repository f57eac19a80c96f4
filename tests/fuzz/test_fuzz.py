"""Whatever is called: a right answer, a flag, or a VeridicalError; the same under other plans and elsewhere.

The seed says how to make a call again. Nightly: 100 shards of scripts/fuzz.py.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from scripts.fuzz import again
from tests.fuzz import agreement, calls, mutations, systems

SEED = 20261116


def told(tally: calls.Tally) -> str:
    return f"seed {SEED}, {dict(tally.outcomes)}, {len(tally.wrong)} wrong:\n" + "\n".join(tally.wrong[:20])


@pytest.mark.parametrize("part", range(3))
def test_random_calls(part: int, capsys: pytest.CaptureFixture[str]) -> None:
    tally = calls.run(500, SEED + part)
    with capsys.disabled():
        print(f" [seed {SEED + part}: {dict(tally.outcomes)}]", end="")
    assert not tally.wrong, told(tally)
    assert tally.outcomes["answer"] > 100
    assert tally.outcomes["refused"] > 100
    assert tally.outcomes["under another plan"] > 40


def test_another_process_has_the_same_answers_in_another_order() -> None:
    here, there = calls.run(120, SEED).digests, again(120, SEED)
    assert len(there) == 40
    assert {number: here[number] for number in there} == there


@pytest.mark.parametrize("name", systems.SYSTEMS)
def test_every_system_is_reached_and_answers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "KINDS", {"system": (systems.SYSTEMS[name][0], 1.0)})
    monkeypatch.setattr(calls, "MODEST", ())
    monkeypatch.setattr(calls, "TWICE", 2)
    tally = calls.run(6, SEED)
    assert not tally.wrong, told(tally)
    assert tally.outcomes["answer"] >= 2


def test_changed_files(tmp_path: Path) -> None:
    tally = mutations.run(2100, SEED, tmp_path)
    assert not tally.wrong, told(tally)
    assert tally.outcomes["answer"] > 50
    assert tally.outcomes["refused"] > 1000


def test_the_promise_would_be_seen_broken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tally = calls.Tally()
    for error in (KeyError("raw"), None):

        def bad(_chance: object, error: Exception | None = error) -> None:
            if error is not None:
                raise error
            raise calls.Hang

        monkeypatch.setattr(calls, "KINDS", {"bad": (bad, 1)})
        calls.one(0, 0, tally)
    assert tally.outcomes == {"raw": 1, "hang": 1}
    assert len(tally.wrong) == 2
    monkeypatch.setattr(mutations.files, "verify_checksum", lambda *_: "")
    assert any("taken for a whole one" in line for line in mutations.run(140, 1, tmp_path).wrong)


@pytest.mark.parametrize("wrong", ["number", "size", "refusal", "escape"])
def test_answers_that_follow_the_plan_or_hold_commands_would_be_seen(
    wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def follows(chance: systems.Draw) -> Any:
        rows = 0 if chance.plan is None or chance.plan.rows is None else chance.plan.rows
        if wrong == "number":
            return torch.ones(3, dtype=torch.float64) + 1e-5 * rows
        if wrong == "size":
            return [1.0] * rows
        if wrong == "refusal" and rows == calls.PLANS[0].rows:
            raise calls.VeridicalError("not under this plan")
        return "red: \x1b[31m" if wrong == "escape" else "fine"

    tally = calls.Tally()
    monkeypatch.setattr(calls, "KINDS", {"score": (follows, 1)})
    monkeypatch.setattr(calls, "TWICE", 1)
    calls.one(0, 0, tally)
    assert tally.outcomes["silent" if wrong == "escape" else "disagrees"] == 1
    assert agreement.digest(ValueError("a")) != agreement.digest(ValueError("b"))
