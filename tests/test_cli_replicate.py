"""`veridical replicate`: finds the programs beside the source, and nowhere else."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

import veridical.cli.replicate as command
from veridical.cli.app import app
from veridical.errors import InputError, UnknownNameError

runner = CliRunner()


def test_it_lists_the_parts(capfd: pytest.CaptureFixture[str]) -> None:
    result = runner.invoke(app, ["replicate", "qge", "--list"])
    assert result.exit_code == 0, result.output
    assert "wine9: needs no data of yours" in capfd.readouterr().out


def test_an_unknown_paper_is_told_the_nearest() -> None:
    result = runner.invoke(app, ["replicate", "ffidelity"])
    assert isinstance(result.exception, UnknownNameError)
    assert "did you mean 'f-fidelity'" in str(result.exception)


def test_an_installed_package_says_where_the_programs_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    installed = tmp_path / "site-packages" / "veridical" / "cli" / "replicate.py"
    monkeypatch.setattr(command, "__file__", str(installed))
    with pytest.raises(InputError, match="not with the installed package"):
        command.checkout(None)


def test_programs_in_the_current_folder_are_not_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "replications" / "gef").mkdir(parents=True)
    (tmp_path / "replications" / "common.py").touch()
    (tmp_path / "replications" / "gef" / "__main__.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    assert command.checkout(None) != tmp_path
    result = runner.invoke(app, ["replicate", "gef", "--list"])
    assert result.exit_code == 0
    assert not (tmp_path / "ran").exists()
    assert command.checkout(tmp_path) == tmp_path


def test_a_wrong_source_or_data_folder_is_refused(tmp_path: Path) -> None:
    for words in (["--source", str(tmp_path)], ["--data", str(tmp_path / "missing")]):
        result = runner.invoke(app, ["replicate", "gef", *words])
        assert isinstance(result.exception, InputError)
