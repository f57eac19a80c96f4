"""`veridical doctor`: what a model and its data are, and what explaining them takes, before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from veridical.cli.app import app, out
from veridical.cli.sources import AllowCode, Arch, Device, Labels, Samples, Text, Train, task_from_options
from veridical.errors import StorageError
from veridical.loading.diagnosis import Diagnosis, diagnose
from veridical.values.table_files import check_writable


@app.command()
def doctor(
    model: Annotated[str, typer.Argument(help="Your model, as --model of the other commands takes it.")],
    data: Annotated[Path, typer.Argument(help="Your data, as --data takes it.")],
    arch: Arch = None,
    labels: Labels = None,
    train: Train = None,
    text: Text = None,
    allow_code: AllowCode = False,
    folder: Annotated[Path, typer.Option("--out", "-o", help="Where results shall go.")] = Path("audit"),
    samples: Samples = None,
    device: Device = None,
) -> None:
    """Say what a model and its data are, which explainers and metrics apply, and what they take.

    Exit status 1 says that something should be looked at first.

    Example: veridical doctor model.onnx rows.npz
    """
    task = task_from_options(None, model, data, arch, labels, train, allow_code, samples, device, text)
    found = diagnose(task)
    for line in found.about:
        out.print(escape(line), soft_wrap=True)
    out.print(_costs(found, len(task)))
    out.print(f"metrics that apply: {', '.join(found.metrics)}", soft_wrap=True)
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


def _costs(found: Diagnosis, samples: int) -> Table:
    table = Table(box=None, title=f"\nexplainers that apply, for {samples} samples", title_justify="left")
    for title in ("explainer", "rows a map", "rows in all", "about"):
        table.add_column(title, justify="left" if title == "explainer" else "right")
    for name, rows in sorted(found.rows.items(), key=lambda item: item[1]):
        minutes = found.minutes(name, samples)
        took = f"{60 * minutes:.1f} s" if minutes < 1 else f"{minutes:.0f} min"
        table.add_row(name, f"{rows:,}", f"{rows * samples:,}", took)
    return table


def _unwritable(folder: Path) -> list[str]:
    try:
        check_writable(folder / "report.html")
    except StorageError as error:
        return [str(error)]
    return []
