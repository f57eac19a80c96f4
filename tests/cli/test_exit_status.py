"""One table of exit statuses for every command: docs/how-to/audit.md#exit-status."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from tests.auditing.test_verdict import METRICS, field
from veridical.auditing.verdict import decide
from veridical.cli import app as shell
from veridical.cli import main
from veridical.cli.app import Status, app
from veridical.cli.audit import status_of
from veridical.errors import InputError, ModelError, NotApplicableError, StorageError

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "audit.md"


def commands() -> list[tuple[str, ...]]:
    """Every command, those of groups with the group before them."""
    found: list[tuple[str, ...]] = []
    top: Any = get_command(app)
    for name, command in top.commands.items():
        inside = getattr(command, "commands", None)
        found += [(name, one) for one in inside] if inside else [(name,)]
    return found


def status(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """With what the whole program ends."""
    monkeypatch.setattr("sys.argv", ["veridical", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_the_page_has_a_row_for_each() -> None:
    rows = re.findall(r"^\| (\d+) \| ([^|]+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert [(int(number), words) for number, words in rows] == [
        (Status.GOOD, "good"),
        (Status.FINDING, "a finding"),
        (Status.USAGE, "usage"),
        (Status.OPEN, "not decided"),
        (Status.FAILED, "could not run"),
        (Status.INTERRUPTED, "interrupted"),
    ]


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_every_command_ends_alike(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a command raises decides, whichever it is: usage, what cannot run, Ctrl-C, a mistake of ours."""
    assert status(monkeypatch, *command, "--help") == Status.GOOD
    assert status(monkeypatch, *command, "--no-such-option") == Status.USAGE
    group: Any = get_command(app)
    for name in command:
        group = group.commands[name]
    for raised, wanted in (
        (InputError("no such thing"), Status.USAGE),
        (NotApplicableError("not here"), Status.FAILED),
        (ModelError("it broke"), Status.FAILED),
        (StorageError("disk full"), Status.FAILED),
        (ZeroDivisionError("a mistake of ours"), Status.FAILED),
        (KeyboardInterrupt(), Status.INTERRUPTED),
    ):

        def breaks(*given: Any, error: BaseException = raised, **more: Any) -> None:
            raise error

        monkeypatch.setattr("typer.core.TyperCommand.invoke", breaks)
        words = ["x"] * sum(one.required for one in group.params if one.param_type_name == "argument")
        if any(one.name == "settings" and one.required for one in group.params):
            words += ["--settings", "{}"]
        if any(one.name == "against" for one in group.params):
            words += ["--against", "audit"]
        assert status(monkeypatch, *command, *words) == wanted, (command, raised)
    monkeypatch.undo()
    assert "Traceback" in capsys.readouterr().err  # of the mistake of ours alone


@pytest.mark.parametrize(
    ("means", "wanted"),
    [
        ({"good": 3.0, "bad": -3.0}, Status.GOOD),
        ({"bad": -3.0, "worse": -4.0}, Status.FINDING),
        ({"bad": -3.0, "fair": 0.6}, Status.OPEN),
    ],
)
def test_an_audit_ends_by_its_verdict(means: dict[str, float], wanted: Status) -> None:
    assert status_of(decide(field(means), METRICS)) == wanted


def test_no_verdict_is_open() -> None:
    assert status_of(decide(field({"good": 9.0}, samples=23), METRICS)) == Status.OPEN


def test_only_an_end_that_is_not_good_is_an_exit() -> None:
    shell.end(Status.GOOD)
    with pytest.raises(Exception) as ended:  # noqa: PT011 (typer's own, which is no error)
        shell.end(Status.OPEN)
    assert ended.value.exit_code == 3  # type: ignore[attr-defined]
