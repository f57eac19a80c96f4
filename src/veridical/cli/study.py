"""Commands for studies: run, resume, status, export."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from veridical import study as studies
from veridical.cli.app import Status, app, end, say
from veridical.cli.sources import AllowCode, with_options
from veridical.jobs import RayPool, Store
from veridical.study.cells import CELLS
from veridical.study.plan import StudyPlan, make_plan
from veridical.study.run import default_folder
from veridical.study.study_file import read_study

Workers = Annotated[int, typer.Option("--workers", "-w", help="How many processes.", min=1)]
FolderName = Annotated[str, typer.Argument(help="Folder of a study.")]


@dataclass(frozen=True)
class Running:
    """How a study is run."""

    workers: Workers = 2
    executor: Annotated[str | None, typer.Option(help="in-process, threads, processes or ray.")] = None
    address: Annotated[
        str | None, typer.Option(help="Ray cluster, such as host:port or auto; without it one is started.")
    ] = None
    allow_code: AllowCode = False
    log_json: Annotated[bool, typer.Option("--log-json", help="Write events to stderr, as JSON.")] = False

    def options(self) -> dict[str, Any]:
        """What `study.run` takes; with `--log-json` every line of the log is shown instead of a bar."""
        trust_this_folder(self.allow_code)
        if self.address is not None and self.executor not in (None, "ray"):
            raise typer.BadParameter(f"--address is of a Ray cluster, and --executor is {self.executor}")
        found: dict[str, Any] = {"workers": self.workers, "allow_code": self.allow_code}
        found["executor"] = self.executor if self.address is None else RayPool(self.address)
        return found | ({"watch": _print_json, "progress": False} if self.log_json else {})


def _print_json(line: dict[str, Any]) -> None:
    print(json.dumps(line), file=sys.stderr, flush=True)


@app.command("run")
@with_options()
def run_study(
    file: Annotated[Path, typer.Argument(help="The study file (YAML).")],
    how: Running,
    folder: Annotated[
        str | None, typer.Option("--out", "-o", help="Folder. [default: named after the file]")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what there is to do.")] = False,
) -> None:
    """Compute every cell of a study that is not there yet. Exit status 4 says that a cell failed.

    Example: veridical run study.yaml --workers 2
    """
    if dry_run:
        _planned(file, folder, how)
    else:
        _show(studies.run(file, folder, **how.options()))


@app.command("resume")
@with_options()
def resume_study(folder: FolderName, how: Running) -> None:
    """Go on with the study of a folder: compute what is missing or has failed."""
    _show(studies.resume(folder, **how.options()))


@app.command("status")
def study_status(folder: FolderName) -> None:
    """How far the study of a folder is. Exit status 4 says that a cell has failed."""
    _show(studies.open(folder), must_be_complete=False)


@app.command("export")
def export_study(
    folder: FolderName, path: Annotated[Path, typer.Argument(help="Where to: .csv or .parquet.")]
) -> None:
    """Write all scores of a study as one table, a row per sample.

    Example: veridical export study scores.csv
    """
    say(f"scores written to {studies.open(folder).export(path)}")


def _planned(file: Path, folder: str | None, how: Running) -> None:
    trust_this_folder(how.allow_code)
    plan = make_plan(read_study(file), how.allow_code)
    there = Store(folder or default_folder(file)).hashes(CELLS)
    known = Counter(job.hash in there for job in plan.cells())
    first = sum(1 for _ in plan.preparations())
    said = f"{known.total()} cells, {known[True]} of them there already, after {first} preparations"
    say(f"{said}; nothing was computed")
    _say_left_out(plan)


def _say_left_out(plan: StudyPlan) -> None:
    """What does not apply, and what nothing tells the changes of."""
    for skipped in plan.skipped:
        who = skipped["explainer"] or skipped["metric"]
        say(f"does not apply: {who} on {skipped['task']}: {skipped['reason']}")
    if plan.uncached:
        say(f"computed at every run, since no importable source tells of changes: {', '.join(plan.uncached)}")


def _show(study: studies.Study, must_be_complete: bool = True) -> None:
    state = study.status()
    say(str(study))
    _say_left_out(study.plan)
    for failure in study.failures:
        say(f"failed {' / '.join(map(str, failure.name))}: {failure.error}")
    if must_be_complete and not state.complete and not state.failed:
        end(Status.INTERRUPTED)
    end(Status.FAILED if state.failed else Status.GOOD)


def trust_this_folder(allow_code: bool) -> None:
    """Code that the user allows is looked for where the user stands, as `python -m` would."""
    if allow_code and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
