"""`veridical doctor`: what a model and its data are, and what explaining them takes, before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

import veridical as vd
from veridical.cli.app import Status, app, end, print_table, say
from veridical.cli.sources import Folder, Source, with_options
from veridical.data.diagnosis import BACKWARD, Diagnosis, diagnose
from veridical.errors import InputError, StorageError
from veridical.metrics.base import ExplainerMetric
from veridical.metrics.base import registry as metrics
from veridical.values.tables import check_writable


@app.command()
@with_options(without=("task", "units", "off"))
def doctor(
    source: Source,
    model_file: Annotated[str | None, typer.Argument(metavar="MODEL", help="The same as --model.")] = None,
    data_file: Annotated[Path | None, typer.Argument(metavar="DATA", help="The same as --data.")] = None,
    folder: Folder = Path("audit"),
) -> None:
    """Describe a model and its data, which explainers and metrics apply, and what they and an audit take.

    Exit status 1 means that something should be checked first.

    Example: veridical doctor model.onnx rows.npz
    """
    source = replace(source, model=model_file or source.model, data=data_file or source.data)
    if source.model is None:
        raise InputError("name your model and data: veridical doctor MODEL DATA (or --model, --data)")
    task = source.load()
    found = diagnose(task)
    for line in found.about:
        say(line)
    maps = {name: (rows, rows * len(task)) for name, rows in found.rows.items()}
    _costs(f"explainers that apply, for {len(task)} samples", "explainer", maps, found)
    scores = {n: r if isinstance(r, str) else (r, r * len(task)) for n, r in found.metrics.items()}
    _costs(f"metrics that apply, for {len(task)} maps of one method", "metric", scores, found)
    again = [name for name in scores if isinstance(metrics.make(name), ExplainerMetric)]
    say(f"these make maps again, whose rows come on top: {', '.join(again)}")
    _costs("audits, if every method stays open to the end", "effort", _audits(task), found)
    say("\nnot here:")
    for reason in dict.fromkeys(found.left_out.values()):
        names = ", ".join(name for name, why in found.left_out.items() if why == reason)
        say(f"  {names}: {reason}")
    warnings = list(found.warnings)
    try:
        check_writable(folder / "report.html")
    except StorageError as error:
        warnings.append(str(error))
    for warning in warnings:
        say(f"look first: {warning}", "red")
    if warnings:
        end(Status.FINDING)
    say(f"\nresults can be written to {folder}; nothing stands in the way")


def _costs(title: str, what: str, rows: Mapping[str, tuple[int, int] | str], found: Diagnosis) -> None:
    """Rows a map and in all, and about how long they take; why, where that is unknown."""
    known = {name: cost for name, cost in rows.items() if not isinstance(cost, str)}
    cells: list[tuple[str, ...]] = []
    for name, (each, total) in sorted(known.items(), key=lambda item: item[1][1]):
        minutes = found.minutes(total)
        took = f"{60 * minutes:.1f} s" if minutes < 1 else f"{minutes:.0f} min"
        cells.append((name, f"{each:,}", f"{total:,}", took))
    print_table((what, "rows a sample", "rows in all", "about"), cells, title=f"\n{title}")
    unknown = [cost for cost in rows.values() if isinstance(cost, str)]
    for why in dict.fromkeys(unknown):
        say(f"{', '.join(name for name, cost in rows.items() if cost == why)}: {why}")


def _audits(task: vd.Task) -> dict[str, tuple[int, int] | str]:
    """Rows that an audit takes at most, by effort."""
    found: dict[str, tuple[int, int] | str] = {}
    for name in ("glance", "quick", "standard") if len(task) > 1 else ():
        expected = vd.audit(task, effort=name, dry_run=True)
        rows = expected.cost.forward + BACKWARD * expected.cost.backward
        if rows:
            found[name] = rows // expected.samples, rows
    return found
