"""The commands: what they print, and what their exit status says."""

import json

import pytest
import yaml
from typer.testing import CliRunner, Result

import veridical.cli.study  # noqa: F401 (adds its commands)
from veridical.cli.app import app


def call(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def file(small, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(small))
    return path


def test_run_status_export_and_resume(file, tmp_path):
    done = call("run", file, "--workers", 1)
    assert done.exit_code == 0, done.output
    folder = tmp_path / "mine_study"
    assert "24 of 24 cells done" in done.output
    assert call("status", folder).output.startswith("Study 'small' in")
    assert call("export", folder, tmp_path / "x.csv").exit_code == 0
    assert (tmp_path / "x.csv").read_text().startswith("task,explainer,metric,seed,id,value,direction,flags")
    for path in list((folder / "cells").iterdir())[:5]:
        path.unlink()
    assert "19 of 24 cells done, 5 to do" in call("status", folder).output
    resumed = call("resume", folder, "--workers", 1, "--log-json")
    assert resumed.exit_code == 0
    lines = [json.loads(line) for line in resumed.stderr.splitlines()]
    assert [line["event"] for line in lines if line["event"] != "started"] == [
        "planned",
        *["done"] * 5,
        "finished",
    ]
    assert lines[0]["left"] == 5
    assert lines[-1]["left"] == 0
    assert all(line["seconds"] > 0 and line["pid"] for line in lines if line["event"] == "done")


def test_a_dry_run_computes_nothing(file, tmp_path):
    said = call("run", file, "--dry-run")
    assert said.exit_code == 0, said.output
    assert "24 cells, 0 of them there already, after 0 preparations" in said.output
    assert not (tmp_path / "mine_study").exists()


def test_a_failed_cell_and_forbidden_code_are_told_by_the_exit_status(code, tmp_path):
    code["metrics"].append({"code": "tests.study.user_code:Breaks"})
    file = tmp_path / "code.yaml"
    file.write_text(yaml.safe_dump(code))
    refused = call("run", file, "--workers", 1)
    assert refused.exit_code != 0
    assert "--allow-code" in str(refused.exception)
    failed = call("run", file, "--workers", 1, "--allow-code")
    assert failed.exit_code == 4
    assert "failed whole / flipped / breaks / 0: ValueError: it had to be" in failed.output
    assert call("status", tmp_path / "code_study").exit_code == 4


def test_names_of_strangers_are_no_commands_to_the_terminal(small, tmp_path):
    small |= {"name": "\x1b[31mred", "tasks": small["tasks"][:1], "seeds": [0]}
    small["explainers"] = [{"name": "random", "label": "\x1b]0;title\x07\u202e"}]
    file = tmp_path / "evil.yaml"
    file.write_text(yaml.safe_dump(small, allow_unicode=False))
    told = call("run", file, "-w", 1).output + call("status", tmp_path / "evil_study").output
    assert "x1b[31mred" in told
    assert not {"\x1b", "\x07", "\u202e"} & set(told)
