"""`veridical dictionaries`: which metric of sparse dictionaries can be trusted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

import veridical as vd
from veridical.cli import sources
from veridical.cli.app import app, out, save_figure
from veridical.errors import InputError

KINDS = ("topk", "batchtopk", "relu")
SHOWN = ("metric", "trained", "best random", "its value", "smallest difference", "rank with truth", "verdict")


@app.command()
def dictionaries(
    features: Annotated[int, typer.Option(min=4, help="Planted features.")] = 128,
    dimensions: Annotated[int, typer.Option(min=2, help="Dimensions they share; fewer than features.")] = 32,
    active: Annotated[int, typer.Option(min=1, help="Atoms that are active in a row.")] = 4,
    kind: Annotated[str, typer.Option(help="topk, batchtopk or relu.")] = "topk",
    width: Annotated[int | None, typer.Option(min=1, help="Atoms. [default: as many as features]")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps of training, also of the controls.")] = 1500,
    seeds: Annotated[int, typer.Option(min=2, help="Trainings of every dictionary.")] = 4,
    metric: Annotated[
        list[str] | None, typer.Option("--metric", "-m", help="Repeat; all by default.")
    ] = None,
    folder: Annotated[Path, typer.Option("--out", "-o", help="Where tables and pictures go.")] = Path(
        "dictionaries"
    ),
    seed: sources.Seed = 0,
) -> None:
    """Plant features, train dictionaries and controls on them, and say which metric tells them apart.

    Example: veridical dictionaries --steps 200 --seeds 3 -m "explained variance" -m tpp
    """
    if kind not in KINDS:
        raise InputError(f"--kind is {', '.join(KINDS)}; got {kind!r}")
    found_in = vd.dictionaries
    world = found_in.Superposition(features, dimensions, active=max(1.0, active - 1.0), seed=seed)
    shared = (width or features, steps, 256, 5e-3)
    recipe: vd.dictionaries.Recipe
    if kind == "relu":
        recipe = found_in.ReLU(*shared)
    else:
        recipe = (found_in.TopK if kind == "topk" else found_in.BatchTopK)(*shared, active=active)
    found = found_in.judge(world, recipe, seeds=seeds, measures=metric, seed=seed)
    table = Table(box=None)
    for name in SHOWN:
        table.add_column(name, no_wrap=name == "metric")
    for _, row in found.table.iterrows():
        table.add_row(*(escape(_said(row[name])) for name in SHOWN))
    out.print(table)
    found.save(folder)
    save_figure(found_in.plot_trust(found).figure, folder / "trust.png")
    out.print(
        f"written to {folder}: trust.csv, means.csv, readings.csv, about.json, trust.png", soft_wrap=True
    )


def _said(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
