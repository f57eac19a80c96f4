"""`veridical meta ...`: which metric deserves to be believed, for a model and its explainers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

import veridical as vd
from veridical.cli import sources
from veridical.cli.app import app, out, save_figure
from veridical.errors import InputError
from veridical.values.tables import write_csv

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

commands = typer.Typer(
    no_args_is_help=True,
    help="Which metric deserves to be believed: does it stay under slight noise and react to disruption?",
)
app.add_typer(commands, name="meta")

METRICS = ["sparseness", "complexity", "pixel_flipping", "faithfulness_correlation", "max_sensitivity"]
EXPLAINERS = ["gradient", "saliency", "input_x_gradient"]
SCORES = "meta.safetensors"

Explainers = Annotated[list[str] | None, typer.Option("--explainer", "-e", help="Repeat; at least two.")]
Metrics = Annotated[list[str] | None, typer.Option("--metric", "-m", help="Repeat for several.")]
Folder = Annotated[Path, typer.Option("--out", "-o", help="Where tables (.csv) and pictures (.png) go.")]
Draws = Annotated[int, typer.Option("--draws", help="Perturbations per iteration.", min=1)]
Iterations = Annotated[int, typer.Option("--iterations", help="Repeats, whose spread is reported.", min=1)]
Tests = Annotated[
    list[str] | None, typer.Option("--test", help="ipt, mpt, combined; repeat. [default: ipt, mpt]")
]
Published = Annotated[bool, typer.Option("--published", help="Follow the published program, not its paper.")]


@commands.command()
@sources.on_a_task(samples=48)
def benchmark(
    source: sources.Source,
    metric: Metrics = None,
    explainer: Explainers = None,
    draws: Draws = 3,
    iterations: Iterations = 2,
    test: Tests = None,
    published: Published = False,
    folder: Folder = Path("meta"),
    seed: sources.Seed = 0,
) -> None:
    """Rank metrics by meta-consistency inside each category, with area charts and scatter.

    Its scores stay in meta.safetensors, which `vd.meta.load` reads.

    Example: veridical meta benchmark -t digits -m sparseness -m pixel_flipping -e gradient -e saliency
    """
    chosen = source.load()
    result = _evaluated(chosen, metric, explainer, draws, iterations, test, seed, published)
    _tables(folder, reliability=result.to_frame(), by_category=vd.meta.by_category(result))
    if len(result.metrics) > 1:
        _tables(folder, pairs=result.compare())
    _picture(result.plot()[0, 0], folder / "areas.png")
    _picture(result.scatter(), folder / "scatter.png")
    result.save(folder / SCORES)
    _done(folder, result)


@commands.command()
@sources.on_a_task(samples=24)
def damage(
    source: sources.Source,
    metric: Metrics = None,
    reference: Annotated[
        str | None, typer.Option("--reference", help="Whose maps are damaged. [default: exact or occlusion]")
    ] = None,
    folder: Folder = Path("meta"),
    seed: sources.Seed = 0,
) -> None:
    """Which metrics are admissible here: known damage is planted on the maps of one reference method.

    Example: veridical meta damage -t digits -m pixel_flipping -m sparseness
    """
    chosen = source.load()
    found = vd.meta.planted_damage(chosen, metric or METRICS, reference=reference, seed=seed)
    _tables(folder, damage=found.to_frame())
    _picture(found.plot(), folder / "damage.png")
    table = Table(box=None)
    for name in ("metric", "admissible", "concordance", "interval", "why not"):
        table.add_column(name)
    for label, tested in found.metrics.items():
        mean, low, high = tested.mean()
        numbers = ("", "") if tested.untested else (f"{mean:.2f}", f"{low:.2f} to {high:.2f}")
        table.add_row(escape(label), "yes" if tested.admissible else "no", *numbers, escape(tested.reason))
    out.print(table)
    out.print(f"damage on maps of {escape(found.reference)}, {found.cost}", soft_wrap=True)
    _say_where(folder)


@commands.command()
@sources.on_a_task(samples=48)
def search(
    metric: Annotated[str, typer.Argument(help="The metric whose settings are searched.")],
    settings: Annotated[str, typer.Option("--settings", help="Values to try, as '{\"runs\": [20, 100]}'.")],
    source: sources.Source,
    explainer: Explainers = None,
    draws: Draws = 3,
    iterations: Iterations = 2,
    test: Tests = None,
    folder: Folder = Path("meta"),
    seed: sources.Seed = 0,
) -> None:
    """Find the settings of a metric that make it most reliable.

    Example: veridical meta search faithfulness_correlation --settings '{"runs": [20, 100]}' -t digits
    """
    chosen = source.load()
    tried = _values(settings)
    options: dict[str, Any] = {"draws": draws, "iterations": iterations, "seed": seed}
    best, result = vd.meta.search_settings(
        chosen, metric, tried, explainer or EXPLAINERS, tests=test or ("ipt", "mpt"), **options
    )
    _tables(folder, settings=result.to_frame())
    _picture(vd.meta.plot_settings(result), folder / "settings.png")
    _done(folder, result)
    out.print(f"most reliable: [bold]{escape(json.dumps(best.to_json()))}[/bold]", soft_wrap=True)


def _evaluated(
    task: vd.Task,
    metrics: list[str] | None,
    explainers: list[str] | None,
    draws: int,
    iterations: int,
    tests: list[str] | None,
    seed: int,
    published: bool,
) -> vd.meta.MetaEvaluation:
    chosen = tests or ("ipt", "mpt")
    return vd.meta.meta_evaluate(
        task,
        metrics or METRICS,
        explainers or EXPLAINERS,
        tests=chosen,
        draws=draws,
        iterations=iterations,
        seed=seed,
        published=published,
    )


def _values(text: str) -> dict[str, list[Any]]:
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"--settings is not JSON: {error}") from error
    if not isinstance(values, dict) or not all(isinstance(v, list) for v in values.values()):
        raise InputError(f"--settings has a list of values by name, as '{{\"runs\": [20, 100]}}'; got {text}")
    return values


def _tables(folder: Path, **frames: pd.DataFrame) -> None:
    for name, frame in frames.items():
        write_csv(frame, folder / f"{name}.csv")


def _picture(ax: Axes, path: Path) -> None:
    save_figure(ax.figure, path)


def _show(result: vd.meta.MetaEvaluation) -> None:
    columns = ("metric", "test", *vd.meta.ENTRIES, "mc", "mc_std", "dependence")
    table = Table(box=None)
    for name in columns:
        table.add_column(name, justify="left" if name in ("metric", "test") else "right")
    for row in result.to_frame()[list(columns)].itertuples(index=False):
        table.add_row(*(escape(v) if isinstance(v, str) else f"{v:.3f}" for v in row))
    out.print(table)
    out.print("dependence: share of scores that change with permuted maps; no MC counts without it")
    for label, scores in result.scores.items():
        for words in filter(None, (scores.dependence.remark, result.why_no_value(label))):
            out.print(f"{escape(label)}: {escape(words)}", soft_wrap=True)
    for failure in result.failures:
        out.print(
            f"[red]failed[/red] {escape(failure.metric or '')}: {escape(failure.message)}", soft_wrap=True
        )


def _say_where(folder: Path) -> None:
    out.print(f"tables and pictures are in [bold]{escape(str(folder))}[/bold]", soft_wrap=True)


def _done(folder: Path, result: vd.meta.MetaEvaluation) -> None:
    _show(result)
    _say_where(folder)
    if result.failures:
        raise typer.Exit(1)
