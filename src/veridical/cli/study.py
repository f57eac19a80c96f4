"""Commands for studies: run, resume, status, diff, export."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from veridical import study as studies
from veridical.cli.app import app, out, print_table, say

Workers = Annotated[int, typer.Option("--workers", "-w", help="How many processes.", min=1)]
ExecutorName = Annotated[
    str | None,
    typer.Option("--executor", help="in-process, threads, processes or ray; by the workers if not given."),
]
Address = Annotated[
    str | None,
    typer.Option(
        "--address", help="Ray cluster, such as host:port or auto; one is started here if not given."
    ),
]
AllowCode = Annotated[
    bool, typer.Option("--allow-code", help="Import what the study names as code: module:attribute.")
]
LogJson = Annotated[bool, typer.Option("--log-json", help="Write what happens as JSON lines to stderr.")]
SHOWN = 3
FolderName = Annotated[str, typer.Argument(help="Folder of a study: a path or an fsspec URL.")]


@app.command("run")
def run_study(
    file: Annotated[Path, typer.Argument(help="The study file (YAML).")],
    folder: Annotated[
        str | None,
        typer.Option("--out", "-o", help="Folder or fsspec URL; named after the file if not given."),
    ] = None,
    workers: Workers = 2,
    executor: ExecutorName = None,
    address: Address = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what it would take.")] = False,
    allow_code: AllowCode = False,
    log_json: LogJson = False,
) -> None:
    """Compute every cell of a study that is not there yet. Exit status 1 says that a cell failed.

    Example: veridical run study.yaml --workers 2
    """
    trust_this_folder(allow_code)
    if dry_run:
        _estimate(file, folder, workers, allow_code)
        return
    _show(
        studies.run(
            file,
            folder,
            executor=_on(executor, address),
            workers=workers,
            allow_code=allow_code,
            **_log(log_json),
        )
    )


@app.command("resume")
def resume_study(
    folder: FolderName,
    workers: Workers = 2,
    executor: ExecutorName = None,
    address: Address = None,
    allow_code: AllowCode = False,
    log_json: LogJson = False,
) -> None:
    """Go on with the study of a folder: compute what is missing or has failed."""
    trust_this_folder(allow_code)
    _show(
        studies.resume(
            folder,
            executor=_on(executor, address),
            workers=workers,
            allow_code=allow_code,
            **_log(log_json),
        )
    )


@app.command("status")
def study_status(folder: FolderName) -> None:
    """How far the study of a folder is. Exit status 1 says that a cell has failed."""
    _show(studies.open(folder), must_be_complete=False)


@app.command("diff")
def diff_studies(a: FolderName, b: FolderName) -> None:
    """Compare settings and cells of two studies. Exit status 1 says that a value, flag or cost differs."""
    found = studies.diff(studies.open(a), studies.open(b))
    for line in found.settings:
        say(line)
    rows = []
    alone = {side: [cell for cell in found.cells if cell.only == side] for side in ("a", "b")}
    for cell in found.cells:
        if not cell.same and not cell.only:
            also = [name for name in ("flags", "cost") if getattr(cell, name)]
            rows.append(
                (
                    " / ".join(map(str, cell.name)),
                    f"{cell.mean_a:.4f}",
                    f"{cell.mean_b:.4f}",
                    f"{cell.unequal} of {cell.samples}",
                    f"{cell.largest:.3g}",
                    ", ".join(also),
                )
            )
    if rows:
        print_table(("cell", "mean of a", "mean of b", "unequal", "largest", "also"), rows, left="also")
    for side, cells in alone.items():
        if cells:
            named = "; ".join(" / ".join(map(str, cell.name)) for cell in cells[:SHOWN])
            more = f"; and {len(cells) - SHOWN} more" if len(cells) > SHOWN else ""
            say(f"only in {side}: {len(cells)} cells: {named}{more}")
    same = sum(cell.same for cell in found.cells)
    out.print(f"{same} of {len(found.cells)} cells have the same values, flags and costs")
    if not found.same:
        raise typer.Exit(1)


@app.command("export")
def export_study(
    folder: FolderName,
    path: Annotated[Path | None, typer.Argument(help="Where to: .csv or .parquet.")] = None,
    also: Annotated[Path | None, typer.Option("--out", "-o", help="The same, as an option.")] = None,
) -> None:
    """Write all scores of a study as one table, a row per sample.

    Example: veridical export study scores.csv
    """
    place = path or also
    if place is None:
        raise typer.BadParameter("say where to: veridical export FOLDER scores.csv")
    say(f"scores written to {studies.open(folder).export(place)}")


def _estimate(file: Path, folder: str | None, workers: int, allow_code: bool) -> None:
    from veridical.jobs import Store
    from veridical.study.cells import CELLS
    from veridical.study.estimate import estimate
    from veridical.study.plan import make_plan
    from veridical.study.run import default_folder
    from veridical.study.study_file import read_study

    plan = make_plan(read_study(file), allow_code)
    known = Store(folder or default_folder(file)).hashes(CELLS)
    found = estimate(plan, known, allow_code)
    say(str(found))
    if workers > 1:
        out.print(f"about {found.seconds / workers:.0f} s on {workers} workers")
    _say_uncached(plan.uncached())


def _show(study: Any, must_be_complete: bool = True) -> None:
    state = study.status()
    say(str(study))
    for skipped in study.plan.skipped:
        who = skipped["explainer"] or skipped["metric"]
        say(f"does not apply: {who} on {skipped['task']}: {skipped['reason']}")
    _say_uncached(study.plan.uncached())
    for failure in study.failures:
        name = escape(" / ".join(map(str, failure.name)))
        out.print(f"[red]failed[/red] {name}: {escape(failure.error)}", soft_wrap=True)
    if state.failed or (must_be_complete and not state.complete):
        raise typer.Exit(1)


def _say_uncached(labels: list[str]) -> None:
    if labels:
        say(f"computed at every run, since no importable source tells of changes: {', '.join(labels)}")


def trust_this_folder(allow_code: bool) -> None:
    """Code that the user allows is looked for where the user stands, as `python -m` would."""
    if allow_code and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def _on(executor: str | None, address: str | None) -> Any:
    if address is None:
        return executor
    if executor not in (None, "ray"):
        raise typer.BadParameter(f"--address is of a Ray cluster, and --executor is {executor}")
    from veridical.jobs import RayPool

    return RayPool(address)


def _log(as_json: bool) -> dict[str, Any]:
    """With `--log-json`, every line of the log on standard error instead of a bar."""
    if not as_json:
        return {}
    return {"watch": lambda line: print(json.dumps(line), file=sys.stderr, flush=True), "progress": False}
