"""What a runner of continuous integration would execute, executed here: no runner is at hand."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
# `make test` and `make test-extras` run this very test and make the docs
RUN_ELSEWHERE = {"make test", "make test-extras", "make docs"}


def steps() -> list[tuple[str, str]]:
    found = []
    for file in WORKFLOWS:
        for job in yaml.safe_load(file.read_text())["jobs"].values():
            found += [(file.name, step["run"]) for step in job["steps"] if "run" in step]
    return found


def test_every_workflow_has_jobs_with_steps() -> None:
    assert {file.name for file in WORKFLOWS} == {"tests.yml", "docs.yml", "release.yml"}
    assert {command for _, command in steps()} >= RUN_ELSEWHERE


@pytest.mark.parametrize(("file", "command"), steps())
def test_every_target_that_a_workflow_makes_exists(file: str, command: str) -> None:
    if command.startswith("make "):
        done = subprocess.run(["make", "-n", *command.split()[1:]], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_tests_run_on_every_python_that_the_package_claims() -> None:
    core = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text())["jobs"]["core"]
    claimed = [
        line.split(" :: ")[-1].strip('",')
        for line in (ROOT / "pyproject.toml").read_text().splitlines()
        if "Python :: 3." in line
    ]
    assert core["strategy"]["matrix"]["python"] == claimed


@pytest.mark.slow
def test_the_example_for_pull_requests_runs_in_a_clean_checkout(tmp_path: Path) -> None:
    checkout, tools, summary = tmp_path / "checkout", tmp_path / "bin", tmp_path / "summary.md"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(checkout)], check=True)
    tools.mkdir()
    for name, words in (("python", ""), ("veridical", "-m veridical")):
        (tools / name).write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
        (tools / name).chmod(0o755)
    env = {**os.environ, "GITHUB_STEP_SUMMARY": str(summary), "PYTHONPATH": str(checkout / "src")}
    env["PATH"] = f"{tools}:{env['PATH']}"
    (job,) = yaml.safe_load((ROOT / "examples/ci/explanations.yml").read_text())["jobs"].values()
    install, *others = [step["run"] for step in job["steps"] if "run" in step]
    assert (
        install == 'python -m pip install -c constraints.txt ".[plots]"'
    )  # it downloads; the package is there
    begun = time.monotonic()
    for command in others:
        done = subprocess.run(
            ["bash", "-eo", "pipefail", "-c", command], cwd=checkout, env=env, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert time.monotonic() - begun < 300
    assert summary.read_text().startswith("### Explanations: The explanations that were trusted still hold")


@pytest.mark.slow
@pytest.mark.parametrize(("file", "command"), [step for step in steps() if step[1] not in RUN_ELSEWHERE])
def test_what_a_workflow_runs_passes_in_a_clean_checkout(file: str, command: str, tmp_path: Path) -> None:
    if "--require-hashes" in command:
        pytest.skip("it downloads 3 GB of packages; scripts/hash_pins.py wrote what it installs")
    if file == "release.yml":
        pytest.importorskip("hatchling", reason="what a release builds with is in requirements-hashed.txt")
    checkout = tmp_path / "checkout"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(checkout)], check=True)
    (checkout / ".venv").symlink_to(Path(sys.prefix), target_is_directory=True)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command], cwd=checkout, capture_output=True, text=True
    )
    shutil.rmtree(checkout)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
