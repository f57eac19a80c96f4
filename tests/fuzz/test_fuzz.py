"""Whatever is asked: a right answer, a flag, or a VeridicalError. The seed says how to ask it again.

By hand: `python scripts/fuzz.py --calls 100000 --mutations 20000 --seed 7`.
"""

from pathlib import Path

import pytest

from tests.fuzz import calls, mutations

SEED = 20261116


def told(tally: calls.Tally) -> str:
    return f"seed {SEED}, {dict(tally.outcomes)}, {len(tally.wrong)} wrong:\n" + "\n".join(tally.wrong[:20])


@pytest.mark.parametrize("part", range(5))
def test_random_calls(part: int, capsys: pytest.CaptureFixture[str]) -> None:
    tally = calls.run(1000, SEED + part)
    with capsys.disabled():
        print(f" [seed {SEED + part}: {dict(tally.outcomes)}]", end="")
    assert not tally.wrong, told(tally)
    assert tally.outcomes["answer"] > 150
    assert tally.outcomes["refused"] > 150


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
