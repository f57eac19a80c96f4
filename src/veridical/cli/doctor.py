"""`veridical doctor`: what a model and its data are, and what explaining them takes, before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

import veridical as vd
from veridical.auditing.candidates import choose_criteria, choose_explainers, choose_metrics
from veridical.auditing.effort import effort_of
from veridical.cli.app import app, out
from veridical.cli.sources import (
    AllowCode,
    Arch,
    Device,
    Labels,
    Output,
    Samples,
    Source,
    Text,
    Train,
)
from veridical.data.diagnosis import FEW_FEATURES, Diagnosis, diagnose, scoring_rows
from veridical.errors import StorageError
from veridical.values.tables import check_writable


@app.command()
def doctor(
    model: Annotated[str, typer.Argument(help="Your model, as --model of the other commands takes it.")],
    data: Annotated[Path, typer.Argument(help="Your data, as --data takes it.")],
    arch: Arch = None,
    labels: Labels = None,
    train: Train = None,
    text: Text = None,
    output: Output = None,
    allow_code: AllowCode = False,
    folder: Annotated[Path, typer.Option("--out", "-o", help="Where results shall go.")] = Path("audit"),
    samples: Samples = None,
    device: Device = None,
) -> None:
    """Say what a model and its data are, which explainers and metrics apply, and what they and an audit take.

    Exit status 1 says that something should be looked at first.

    Example: veridical doctor model.onnx rows.npz
    """
    source = Source(None, model, data, arch, labels, train, text, output, allow_code=allow_code)
    task = replace(source, samples=samples, device=device).load()
    found = diagnose(task)
    for line in found.about:
        out.print(escape(line), soft_wrap=True)
    maps = {name: (rows, rows * len(task)) for name, rows in found.rows.items()}
    out.print(_costs(f"explainers that apply, for {len(task)} samples", "explainer", maps, found))
    scores = {n: None if rows is None else (rows, rows * len(task)) for n, rows in found.metrics.items()}
    out.print(_costs(f"metrics that apply, for {len(task)} maps of one method", "metric", scores, found))
    out.print(_costs("audits, if every method stays open to the end", "effort", _audits(task, found), found))
    out.print("\nnot here:")
    for reason in dict.fromkeys(found.left_out.values()):
        names = ", ".join(name for name, why in found.left_out.items() if why == reason)
        out.print(escape(f"  {names}: {reason}"), soft_wrap=True)
    warnings = [*found.warnings, *_unwritable(folder)]
    for warning in warnings:
        out.print(f"[red]look first[/red]: {escape(warning)}", soft_wrap=True)
    if warnings:
        raise typer.Exit(1)
    out.print(f"\nresults can be written to {escape(str(folder))}; nothing stands in the way", soft_wrap=True)


def _costs(title: str, what: str, rows: Mapping[str, tuple[int, int] | None], found: Diagnosis) -> Table:
    """Rows a map and in all, and about how long they take; what could not be tried is said to be unknown."""
    table = Table(box=None, title=f"\n{title}", title_justify="left")
    for column in (what, "rows a sample", "rows in all", "about"):
        table.add_column(column, justify="left" if column == what else "right")
    known = {name: asked for name, asked in rows.items() if asked is not None}
    for name, (each, total) in sorted(known.items(), key=lambda item: item[1][1]):
        minutes = found.minutes(total)
        took = f"{60 * minutes:.1f} s" if minutes < 1 else f"{minutes:.0f} min"
        table.add_row(name, f"{each:,}", f"{total:,}", took)
    for name in rows.keys() - known.keys():
        table.add_row(name, "", "", "not tried")
    return table


def _audits(task: vd.Task, found: Diagnosis) -> dict[str, tuple[int, int] | None]:
    """Rows that the race of an audit asks at most, of each effort: maps, their scores, and the swap."""
    reckoned: dict[str, tuple[int, int] | None] = {}
    if len(task) < 2:
        return reckoned
    for name in ("glance", "quick", "standard"):
        plan = effort_of(name, task)
        panel = choose_explainers(task, None, plan, None)
        judges = choose_metrics(task, plan, None, choose_criteria(None), None)
        scoring = sum(scoring_rows(judge, task) or 0 for judge in judges.scoring.values())
        # as the race itself reckons: the swap takes three maps more and five times their scores
        maps, scores = (4, 6) if task.predictor.differentiable else (1, 1)
        methods = [found.rows.get(method.name, 0) for method in panel.explainers.values()]
        each = sum(maps * rows + scores * scoring for rows in methods) + len(panel.controls) * scoring
        if task.space.n_features <= FEW_FEATURES:
            # every mask is asked once, whoever wants it
            each = min(each, scores * 2**task.space.n_features * task.fill.repeats_on(task))
        reckoned[name] = each, min(each * min(len(task), plan.samples), plan.budget)
    return reckoned


def _unwritable(folder: Path) -> list[str]:
    try:
        check_writable(folder / "report.html")
    except StorageError as error:
        return [str(error)]
    return []
