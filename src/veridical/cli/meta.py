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
from veridical.values.table_files import write_csv

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

Result = Annotated[Path, typer.Argument(help="A benchmark's meta.safetensors, or its folder.")]

Explainers = Annotated[list[str] | None, typer.Option("--explainer", "-e", help="Repeat; at least two.")]
Metrics = Annotated[list[str] | None, typer.Option("--metric", "-m", help="Repeat for several.")]
Folder = Annotated[Path, typer.Option("--out", "-o", help="Where tables (.csv) and pictures (.png) go.")]
Draws = Annotated[int, typer.Option("--draws", help="Perturbed worlds per iteration.", min=1)]
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

    Its scores stay in meta.safetensors, of which convergence, explainers and compare make their tables.

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
def voices(
    source: sources.Source,
    metric: Metrics = None,
    reference: Annotated[
        str | None, typer.Option("--reference", help="Whose maps are damaged. [default: exact or occlusion]")
    ] = None,
    folder: Folder = Path("meta"),
    seed: sources.Seed = 0,
) -> None:
    """Which metrics can see damage here: known damage is planted on the maps of one reference method.

    Example: veridical meta voices -t digits -m pixel_flipping -m sparseness
    """
    chosen = source.load()
    found = vd.meta.planted_damage(chosen, metric or METRICS, reference=reference, seed=seed)
    _tables(folder, voices=found.to_frame())
    _picture(found.plot(), folder / "voices.png")
    table = Table(box=None)
    for name in ("metric", "heard", "concordance", "interval", "why not"):
        table.add_column(name)
    for label, voice in found.voices.items():
        mean, low, high = voice.mean()
        numbers = ("", "") if voice.unjudged else (f"{mean:.2f}", f"{low:.2f} to {high:.2f}")
        table.add_row(escape(label), "yes" if voice.heard else "no", *numbers, escape(voice.reason))
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


@commands.command()
def convergence(result: Result, folder: Folder = Path("meta")) -> None:
    """Do metrics of one category behave alike? Rank correlations of their profiles; no model is asked.

    Example: veridical meta convergence meta/meta.safetensors
    """
    table = vd.meta.category_convergence(_loaded(result))
    _tables(folder, convergence=table)
    _picture(vd.meta.plot_convergence(table), folder / "convergence.png")
    for where, part in table.groupby("where", sort=False):
        out.print(f"{where} categories: mean {part['spearman'].mean():.2f} of {len(part)} pairs")
    _say_where(folder)


@commands.command()
def explainers(
    result: Result,
    explainer_set: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="Explainers with commas, as gradient,saliency; repeat. [default: all sets]"
        ),
    ] = None,
    folder: Folder = Path("meta"),
) -> None:
    """How far does it depend on which explainers are compared? MC for sets of them; no model is asked.

    Example: veridical meta explainers meta/meta.safetensors --set gradient,saliency
    """
    sets = [[name.strip() for name in words.split(",")] for words in explainer_set or []]
    table = vd.meta.explainer_dependence(_loaded(result), sets or None)
    _tables(folder, explainer_sets=table)
    _picture(vd.meta.plot_explainer_sets(table), folder / "explainer_sets.png")
    for metric, part in table.groupby("metric", sort=False):
        low, high, share = part["mc"].min(), part["mc"].max(), part["dependence"].iloc[0]
        out.print(f"{escape(str(metric))}: MC {low:.3f} to {high:.3f}; permuted maps change {share:.0%}")
    _say_where(folder)


@commands.command()
def compare(
    result: Annotated[
        list[str] | None,
        typer.Option("--result", "-r", help="NAME=FILE of a benchmark's meta.safetensors; repeat."),
    ] = None,
    task: Annotated[list[str] | None, typer.Option("--task", "-t", help="Embedded tasks; repeat.")] = None,
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
    """The same metrics on several networks or tasks: side by side, by category, and how often each wins.

    Own models are benchmarked first, one folder each; embedded tasks are evaluated here.

    Example: veridical meta compare -r lenet=a/meta.safetensors -r resnet=b/meta.safetensors
    """
    results = dict(_named_result(words) for words in result or [])
    for name in dict.fromkeys(task or []):
        chosen = sources.Source(task=name, samples=samples, device=device).load()
        results[name] = _evaluated(chosen, metric, explainer, draws, iterations, test, seed, published)
    if len(results) < 2:
        raise InputError(
            f"a comparison needs at least two results or tasks, got {', '.join(results) or 'none'}"
        )
    table, wins = vd.meta.side_by_side(results), vd.meta.ranking_consistency(results)
    averages = vd.meta.category_averages(results)
    _tables(folder, side_by_side=table, ranking_consistency=wins, categories=averages)
    _picture(vd.meta.plot_side_by_side(table), folder / "side_by_side.png")
    _picture(vd.meta.plot_wins(wins), folder / "ranking_consistency.png")
    _picture(vd.meta.plot_categories(averages), folder / "categories.png")
    _picture(vd.meta.area_grid(results)[0, 0], folder / "areas.png")
    for name, found in results.items():
        out.print(f"[bold]{escape(name)}[/bold]")
        _show(found)
    _say_where(folder)


def _loaded(path: Path) -> vd.meta.MetaEvaluation:
    return vd.meta.load(path / SCORES if path.is_dir() else path)


def _named_result(words: str) -> tuple[str, vd.meta.MetaEvaluation]:
    name, found, path = words.partition("=")
    if not found or not name or not path:
        raise InputError(f"--result is NAME=FILE, as lenet=meta/{SCORES}; got {words}")
    return name, _loaded(Path(path))


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
    for label, book in result.books.items():
        for words in filter(None, (book.dependence.remark, result.why_no_value(label))):
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
