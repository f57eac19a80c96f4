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
from veridical.cli.app import app, out
from veridical.errors import InputError

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

Explainers = Annotated[list[str] | None, typer.Option("--explainer", "-e", help="Repeat; at least two.")]
Metrics = Annotated[list[str] | None, typer.Option("--metric", "-m", help="Repeat for several.")]
Folder = Annotated[Path, typer.Option("--out", "-o", help="Where tables (.csv) and pictures (.png) go.")]
Draws = Annotated[int, typer.Option("--draws", help="Perturbed worlds an iteration.", min=1)]
Iterations = Annotated[int, typer.Option("--iterations", help="Repeats, whose spread is reported.", min=1)]
Tests = Annotated[
    list[str] | None, typer.Option("--test", help="ipt, mpt, combined; repeat. [default: ipt, mpt]")
]
Published = Annotated[bool, typer.Option("--published", help="Follow the published program, not its paper.")]


@commands.command()
def benchmark(
    task: sources.TaskName = None,
    model: sources.Model = None,
    data: sources.Data = None,
    arch: sources.Arch = None,
    labels: sources.Labels = None,
    train: sources.Train = None,
    allow_code: sources.AllowCode = False,
    metric: Metrics = None,
    explainer: Explainers = None,
    draws: Draws = 3,
    iterations: Iterations = 2,
    test: Tests = None,
    published: Published = False,
    convergence: Annotated[
        bool, typer.Option("--convergence", help="Do metrics of one category behave alike?")
    ] = False,
    explainer_sets: Annotated[
        bool,
        typer.Option("--explainer-sets", help="How far does it depend on which explainers are compared?"),
    ] = False,
    folder: Folder = Path("meta"),
    samples: sources.Samples = 48,
    seed: sources.Seed = 0,
    device: sources.Device = None,
) -> None:
    """Rank metrics by meta-consistency inside each category; further questions cost no further model runs.

    Example: veridical meta benchmark -t digits -m sparseness -m pixel_flipping -e gradient -e saliency
    """
    chosen = sources.task_from_options(task, model, data, arch, labels, train, allow_code, samples, device)
    result = _evaluated(chosen, metric, explainer, draws, iterations, test, seed, published)
    _tables(folder, reliability=result.to_frame(), by_category=vd.meta.by_category(result))
    if len(result.metrics) > 1:
        _tables(folder, pairs=result.compare())
    _picture(result.plot()[0, 0], folder / "areas.png")
    _picture(result.scatter(), folder / "scatter.png")
    if convergence:
        table = vd.meta.category_convergence(result)
        _tables(folder, convergence=table)
        _picture(vd.meta.plot_convergence(table), folder / "convergence.png")
    if explainer_sets:
        table = vd.meta.explainer_dependence(result)
        _tables(folder, explainer_sets=table)
        _picture(vd.meta.plot_explainer_sets(table), folder / "explainer_sets.png")
    _done(folder, result)


@commands.command()
def search(
    metric: Annotated[str, typer.Argument(help="The metric whose settings are searched.")],
    settings: Annotated[str, typer.Option("--settings", help="Values to try, as '{\"runs\": [20, 100]}'.")],
    task: sources.TaskName = None,
    model: sources.Model = None,
    data: sources.Data = None,
    arch: sources.Arch = None,
    labels: sources.Labels = None,
    train: sources.Train = None,
    allow_code: sources.AllowCode = False,
    explainer: Explainers = None,
    draws: Draws = 3,
    iterations: Iterations = 2,
    test: Tests = None,
    folder: Folder = Path("meta"),
    samples: sources.Samples = 48,
    seed: sources.Seed = 0,
    device: sources.Device = None,
) -> None:
    """Find the settings of a metric that make it most reliable.

    Example: veridical meta search faithfulness_correlation --settings '{"runs": [20, 100]}' -t digits
    """
    chosen = sources.task_from_options(task, model, data, arch, labels, train, allow_code, samples, device)
    tried = _values(settings)
    options: dict[str, Any] = {"draws": draws, "iterations": iterations, "seed": seed}
    best, result = vd.meta.search_settings(
        chosen, metric, tried, explainer or EXPLAINERS, tests=test or ("ipt", "mpt"), **options
    )
    _tables(folder, settings=result.to_frame())
    _picture(vd.meta.plot_settings(result), folder / "settings.png")
    _done(folder, result)
    out.print(f"most reliable: [bold]{escape(json.dumps(best.to_json()))}[/bold]", soft_wrap=True)


@commands.command()
def compare(
    task: Annotated[list[str], typer.Option("--task", "-t", help="Embedded tasks; repeat.")],
    metric: Metrics = None,
    explainer: Explainers = None,
    draws: Draws = 3,
    iterations: Iterations = 2,
    test: Tests = None,
    published: Published = False,
    folder: Folder = Path("meta"),
    samples: sources.Samples = 48,
    seed: sources.Seed = 0,
    device: sources.Device = None,
) -> None:
    """The same metrics on several tasks: their reliability side by side, and how often each one wins.

    Example: veridical meta compare -t digits -t breast_cancer -m sparseness -m complexity
    """
    if len(set(task)) < 2:
        raise InputError(f"a comparison needs at least two tasks, got {', '.join(task)}")
    results = {}
    for name in dict.fromkeys(task):
        chosen = sources.task_from_options(name, None, None, None, None, None, False, samples, device)
        results[name] = _evaluated(chosen, metric, explainer, draws, iterations, test, seed, published)
    table, wins = vd.meta.side_by_side(results), vd.meta.ranking_consistency(results)
    _tables(folder, side_by_side=table, ranking_consistency=wins)
    _picture(vd.meta.plot_side_by_side(table), folder / "side_by_side.png")
    _picture(vd.meta.plot_wins(wins), folder / "ranking_consistency.png")
    for name, result in results.items():
        out.print(f"[bold]{escape(name)}[/bold]")
        _show(result)
    out.print(f"tables and pictures are in [bold]{escape(str(folder))}[/bold]", soft_wrap=True)


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
    return vd.meta_evaluate(
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
    folder.mkdir(parents=True, exist_ok=True)
    for name, frame in frames.items():
        frame.to_csv(folder / f"{name}.csv", index=False)


def _picture(ax: Axes, path: Path) -> None:
    ax.figure.savefig(path, dpi=120)  # type: ignore[union-attr]


def _show(result: vd.meta.MetaEvaluation) -> None:
    columns = ("metric", "test", *vd.meta.ENTRIES, "mc", "mc_std", "dependence")
    table = Table(box=None)
    for name in columns:
        table.add_column(name, justify="left" if name in ("metric", "test") else "right")
    for row in result.to_frame()[list(columns)].itertuples(index=False):
        table.add_row(*(escape(v) if isinstance(v, str) else f"{v:.3f}" for v in row))
    out.print(table)
    out.print("dependence: share of scores that change with permuted maps; no MC counts without it")
    for failure in result.failures:
        out.print(
            f"[red]failed[/red] {escape(failure.metric or '')}: {escape(failure.message)}", soft_wrap=True
        )


def _done(folder: Path, result: vd.meta.MetaEvaluation) -> None:
    _show(result)
    out.print(f"tables and pictures are in [bold]{escape(str(folder))}[/bold]", soft_wrap=True)
    if result.failures:
        raise typer.Exit(1)
