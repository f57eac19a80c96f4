"""`veridical audit` from a shell."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from veridical.cli.app import app

ARGUMENTS = [
    "audit",
    "--task",
    "known/linear",
    "-e",
    "saliency",
    "-e",
    "input_x_gradient",
    "-n",
    "24",
    "--effort",
    "glance",
    "--concepts",
    "none",
]


def test_an_audit_writes_its_verdict(tmp_path):
    result = CliRunner().invoke(app, [*ARGUMENTS, "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "input_x_gradient" in result.output
    assert str(tmp_path / "index.html") in result.output.replace("\n", "")
    text = (tmp_path / "audit.json").read_text()
    assert json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))["ranking"]
    assert not (tmp_path / "unfinished").exists()
    for name in ("index.html", "report.json", "ranking.csv", "scores.csv"):
        assert (tmp_path / name).stat().st_size > 0


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (["--effort", "lazy"], "lazy"),
        (["--criterion", "hearsay"], "hearsay"),
        (["--metric", "no_metric"], "no_metric"),
        (["-e", "no_such"], "no_such"),
    ],
)
def test_mistakes_are_one_clear_line(extra, said, tmp_path):
    result = CliRunner().invoke(app, [*ARGUMENTS, "--out", str(tmp_path), *extra])
    assert result.exit_code != 0
    assert said in str(result.exception)


def test_what_is_finished_stays_when_it_is_stopped(tmp_path, monkeypatch):
    from veridical.auditing import jobs

    real, done = jobs.carry_out, []

    def until(job, seed, *memo):
        if len(done) == 4:
            raise KeyboardInterrupt
        done.append(job)
        return real(job, seed, *memo)

    monkeypatch.setattr(jobs, "carry_out", until)
    stopped = CliRunner().invoke(app, [*ARGUMENTS, "--out", str(tmp_path)])
    assert stopped.exit_code == 130
    assert "4 finished pieces are kept" in stopped.output
    monkeypatch.setattr(jobs, "carry_out", lambda job, *rest: done.append(job) or real(job, *rest))
    assert CliRunner().invoke(app, [*ARGUMENTS, "--out", str(tmp_path)]).exit_code == 0
    assert len({(job.label, job.place, job.draw) for job in done}) == len(done)


def test_a_dry_run_writes_nothing(tmp_path):
    result = CliRunner().invoke(app, [*ARGUMENTS, "--out", str(tmp_path / "new"), "--dry-run"])
    assert result.exit_code == 0, result.output
    assert "rows forward" in result.output
    assert "planted damage" in result.output
    assert not (tmp_path / "new").exists()
