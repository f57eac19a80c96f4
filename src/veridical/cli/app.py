"""Commands of `veridical`."""

from __future__ import annotations

import io
import json
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

import veridical as vd
from veridical.cli.sources import Explainers, Maps, Metrics, Seed, Source, with_maps, with_options
from veridical.core.files import write_file
from veridical.errors import InputError, MissingExtraError, VeridicalError, VeridicalWarning, visible
from veridical.plots import pyplot
from veridical.report.evaluation import save_explanation, shown_samples, strongest, write_explanation
from veridical.values.tables import (
    check_page_path,
    check_table_path,
    check_writable,
    score_table,
    write_table,
)

app = typer.Typer(
    name="veridical",
    help="How faithful is this explanation to the model it explains, and can that number be trusted?",
    epilog="Try: veridical demo    then: veridical evaluate --task digits -e saliency -m pixel_flipping",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
out = Console()


def _draw(explanation: vd.Explanation, task: vd.Task, path: Path) -> Path:
    count = min(4, len(explanation))
    figure = pyplot().Figure(figsize=(3.2 * count, 3.0), layout="constrained")
    for sample, ax in enumerate(figure.subplots(1, count, squeeze=False)[0]):
        explanation.plot(sample, ax, task.inputs if task.inputs.dim() == 4 else None)
    return save_figure(figure, path)


WRITERS: dict[str, Callable[[vd.Explanation, vd.Task, Path], Path]] = {
    ".html": lambda explanation, task, path: write_explanation(explanation, task, path),
    ".json": lambda explanation, task, path: save_explanation(explanation, task, path),
    ".safetensors": lambda explanation, _, path: explanation.save(path),
    **dict.fromkeys((".png", ".svg", ".pdf", ".jpg", ".jpeg"), _draw),
}
"""How maps are written, by the ending of the file."""


class Status(IntEnum):
    """With which status a command ends: the same numbers for all of them."""

    GOOD = 0
    """It ran, and nothing speaks against what it was asked about."""
    FINDING = 1
    """It ran and found something: nothing may be used, something differs, or should be looked at."""
    USAGE = 2
    """What was asked for makes no sense as it was written."""
    OPEN = 3
    """It ran, and what there is does not decide the question."""
    FAILED = 4
    """It, or a part of it, could not run."""
    INTERRUPTED = 130
    """Ctrl-C ended it; what was finished is kept where the command says so."""


def end(status: Status) -> None:
    """End the command with this status."""
    if status:
        raise typer.Exit(status)


def say(line: str, style: str = "") -> None:
    """Print a line as it stands: names in it are no markup and no commands, and it is not broken."""
    out.print(visible(line), style=style or None, soft_wrap=True, markup=False, highlight=False)


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, left: str = "", title: str = "", red: Any = ()
) -> None:
    """Print a table; the first column and those named in `left` are words, the others numbers.

    Cells that are among `red` stand out.
    """
    table = Table(title=title or None, title_justify="left", box=None, show_header=bool(columns))
    for place, name in enumerate(columns):
        words = not place or name in left.split(", ")
        table.add_column(name, justify="left" if words else "right", no_wrap=not place)
    for row in rows:
        texts = [f"{cell:.3f}" if isinstance(cell, float) else visible(str(cell)) for cell in row]
        table.add_row(*(Text(text, "red" if text in red else "") for text in texts))
    out.print(table)


def parse_json(text: str, example: str, holds: Callable[[Any], bool] = lambda _: True) -> dict[str, Any]:
    """The object that `--settings` holds, or a sentence that shows what it should be."""
    try:
        settings = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"--settings is not JSON: {error}") from error
    if not isinstance(settings, dict) or not all(map(holds, settings.values())):
        raise InputError(f"--settings must be an object such as '{example}', got {text}")
    return settings


def _print_version(given: bool) -> None:
    if given:
        say(f"veridical {vd.__version__}")
        raise typer.Exit


@app.callback()
def _before_any_command(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None: ...


@app.command("list")
def list_names(
    what: Annotated[
        str, typer.Argument(help="explainers, metrics or tasks; all of them by default.")
    ] = "all",
) -> None:
    """What there is: explainers, metrics and embedded tasks, and the kinds of input each applies to."""
    tables = {"explainers": vd.list_explainers, "metrics": vd.list_metrics, "tasks": vd.tasks.names}
    if what != "all" and what not in tables:
        raise InputError(f"list explainers, metrics, tasks or all; got '{what}'")
    for title in tables if what == "all" else [what]:
        print_table((), tables[title]().items(), title=title)


@app.command()
@with_options(without=(), samples=16)
def explain(
    explainer: Annotated[str, typer.Argument(help="Name of an explainer; see: veridical list explainers.")],
    source: Source,
    outs: Annotated[
        list[Path] | None,
        typer.Option("--out", "-o", help=f"Write them: {', '.join(WRITERS)}. Repeat for several."),
    ] = None,
    shown: Annotated[int, typer.Option("--show", min=0, help="Print so many samples.")] = 3,
    settings: Annotated[str, typer.Option(help="Settings as JSON, such as '{\"steps\": 64}'.")] = "{}",
    seed: Seed = 0,
) -> None:
    """Explain the samples of an embedded task, or those of your own data by your own model.

    Example: veridical explain integrated_gradients --task digits --out maps.png

    Example: veridical explain integrated_gradients --model ./my-classifier --data reviews.jsonl -o page.html
    """
    for path in outs or ():
        if path.suffix.lower() not in WRITERS:
            raise InputError(f"maps are written as {', '.join(WRITERS)}; '{path.name}' says none of them")
        check_writable(path)
    chosen = source.load()
    explanation = vd.explain(explainer, chosen, seed=seed, **parse_json(settings, '{"steps": 64}'))
    say(repr(explanation))
    found = shown_samples(chosen, explanation)
    for sample, item in enumerate(found["items"][:shown]):
        _show_sample(explanation, sample, item)
    for path in outs or ():
        say(f"written to {WRITERS[path.suffix.lower()](explanation, chosen, path)}")


def _show_sample(explanation: vd.Explanation, sample: int, item: dict[str, Any]) -> None:
    """What a sample was called, and what spoke for and against that."""
    say(f"\nsample {item['id']}: {item['says']}", "bold")
    first = item["maps"][0]
    if "words" in first:
        out.print(Text(" ").join(Text(visible(word), _shade(share)) for word, share in first["words"]))
    elif "sentences" in first:
        pieces = [piece for sentence in first["sentences"] for piece in sentence["pieces"]]
        out.print(Text("").join(Text(visible(text), _shade(share or 0.0)) for text, share in pieces))
    say("  " + ", ".join(f"{name} {value:+.3g}" for name, value in strongest(explanation, sample)))


def _shade(share: float) -> str:
    """Red speaks for, blue against; the more, the bolder."""
    if abs(share) < 0.15:
        return ""
    return ("bold " if abs(share) > 0.5 else "") + ("black on red" if share > 0 else "white on blue")


@app.command()
@with_options(samples=64)
def evaluate(
    source: Source,
    explainer: Explainers = None,
    maps: Maps = None,
    metric: Metrics = None,
    report: Annotated[Path | None, typer.Option("--report", "-r", help="Write an HTML page.")] = None,
    table: Annotated[Path | None, typer.Option(help="Write the table (.csv, .parquet, .md or .tex).")] = None,
    seed: Seed = 0,
    repeats: Annotated[
        int, typer.Option(min=1, help="Score N times, to show what chance does; up to 3 N times the work.")
    ] = 1,
) -> None:
    """Score explainers with metrics on a task. Exit status 4 says that a cell failed.

    Example: veridical evaluate -t digits -e saliency -e random -m pixel_flipping -r report.html

    Example: veridical evaluate --model model.onnx --data rows.npz --maps maps.npz -m pixel_flipping
    """
    if table is not None:
        check_table_path(table)
    if report is not None:
        check_page_path(report)
    chosen = source.load()
    # explainers that suit most tasks: by gradients, where the model has any
    usual = ["saliency", "integrated_gradients"] if chosen.predictor.differentiable else ["occlusion"]
    result = vd.evaluate(
        chosen,
        with_maps(explainer or (["random"] if maps else [*usual, "random"]), maps, chosen),
        metric or ["pixel_flipping", "faithfulness_correlation", "sparseness"],
        seed=seed,
        repeats=repeats,
    )
    scores = score_table(result.scores)
    say(scores.text())
    for failure in result.failures:
        under = "" if failure.metric is None else f" under {failure.metric}"
        say(f"failed {failure.explainer}{under}: {failure.message}", "red")
    for (who, what), found in result.scores.items() if repeats > 1 else ():
        say(f"{who} by {what}: {_chance(found)}")
    if report is not None:
        say(f"report written to {result.report(report)}")
    if table is not None:
        say(f"table written to {write_table(result.to_frame(), table, scores)}")
    if result.interrupted:
        kept = [str(path) for path in (report, table) if path is not None]
        where = f"is in {', '.join(kept)}" if kept else "stands above alone (--table or --report write it)"
        say(f"interrupted: what was finished {where}")
    end(Status.INTERRUPTED if result.interrupted else Status.FAILED if result.failures else Status.GOOD)


def _chance(scores: vd.Scores) -> str:
    try:
        return repr(scores.variance())
    except InputError as error:  # fewer than two samples with a score
        return str(error)


def save_figure(figure: Any, path: Path) -> Path:
    """Write a figure at once, in the format that its name says."""
    content = io.BytesIO()
    figure.savefig(content, dpi=120, format=path.suffix.removeprefix(".") or "png")
    return write_file(path, content.getvalue(), private=False)


def save_plot(draw: Callable[[], Any], path: Path) -> None:
    """Write the figure of the axes that are drawn; where nothing can draw, say so: all else is written."""
    try:
        save_figure(draw().figure, path)
    except MissingExtraError as error:
        say(f"{path.name} is left out: {error}")


def main() -> None:
    """Run the command line; a mistake of the user's is one clear line, not a traceback."""
    warnings.simplefilter("always", VeridicalWarning)
    warnings.showwarning = lambda message, *_, **__: print(f"note: {visible(str(message))}", file=sys.stderr)
    try:
        app()
    except VeridicalError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(Status.USAGE if isinstance(error, InputError) else Status.FAILED)
    except Exception:
        traceback.print_exc()
        sys.exit(Status.FAILED)
