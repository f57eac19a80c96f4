"""`veridical audit`: from a model to a verdict."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

import veridical as vd
from veridical.auditing import EFFORTS, Audit
from veridical.auditing.candidates import CRITERIA, choose_explainers
from veridical.auditing.effort import effort_of
from veridical.cli.app import app, out
from veridical.cli.concepts import HELP, concepts_of
from veridical.cli.sources import Seed, Source, on_a_task
from veridical.errors import StorageError
from veridical.values.tables import check_writable

DEMO_ROWS = 500_000
"""What a first look may ask of a small network: about a minute."""
UNFINISHED = "unfinished"
"""The folder, inside that of the report, of what is finished before the report is."""
CONCEPT_METHODS = ("pca", "kmeans", "ica", "nmf", "cdisco", "ice", "craft", "c-shap", "mcd", "hu-mcd", "sae")


@app.command()
@on_a_task(samples=None, prompts=True)
def audit(
    source: Source,
    explainer: Annotated[
        list[str] | None,
        typer.Option("--explainer", "-e", help="Repeat for several; all that apply by default."),
    ] = None,
    effort: Annotated[str, typer.Option(help=f"How much to do: {', '.join(EFFORTS)}.")] = "quick",
    concept: Annotated[
        list[str] | None,
        typer.Option(
            "--concepts", help=f"Concepts to judge, {HELP}, or none. {', '.join(CONCEPT_METHODS)}. Repeat."
        ),
    ] = None,
    line: Annotated[
        list[str] | None,
        typer.Option(
            "--criterion", help=f"Lines of evidence: {', '.join(CRITERIA)}; all by default. Repeat."
        ),
    ] = None,
    metric: Annotated[
        list[str] | None, typer.Option("--metric", help="Metrics that decide in place of ours. Repeat.")
    ] = None,
    control: Annotated[
        list[str] | None, typer.Option("--control", help="Controls to beat in place of ours. Repeat.")
    ] = None,
    budget: Annotated[int | None, typer.Option(help="Rows that the race may ask the model.", min=1)] = None,
    folder: Annotated[Path, typer.Option("--out", "-o", help="Where the report and the tables go.")] = Path(
        "audit"
    ),
    seed: Seed = 0,
) -> None:
    """Which explainer to use for a model, which not to trust, and how sure that is.

    What is finished is kept in the output folder until the report is there: after Ctrl-C the same command
    goes on. Exit status 1 says that a cell failed.

    Example: veridical audit --task digits
    Example: veridical audit --model ./my-classifier --data reviews.jsonl --labels label
    Example: veridical audit --model ./my-language-model --data prompts.jsonl --units sentence
    """
    check_writable(folder / "report.html")
    concepts = concepts_of(concept)
    chosen = replace(source, samples=None).load()  # the audit itself takes some of its samples
    kept = folder / UNFINISHED
    try:
        kept.mkdir(parents=True, exist_ok=True)  # a place that cannot be written to is said before the work
    except OSError as error:
        raise StorageError.of("written", folder, error) from error
    if chosen.head == "generation":
        foretell(chosen, explainer, effort, source.samples)
    try:
        result = vd.audit(
            chosen,
            explainers=explainer,
            effort=effort,
            seed=seed,
            samples=source.samples,
            criteria=line,
            metrics=metric,
            controls=control,
            budget=budget,
            concepts=concepts,
            folder=kept,
        )
    except KeyboardInterrupt:
        done = len(list(kept.iterdir()))
        out.print(f"\nStopped; {done} finished pieces are kept, and the same command goes on from there.")
        raise typer.Exit(130) from None
    show(result)
    write(result, folder)
    shutil.rmtree(kept, ignore_errors=True)
    if result.evaluation.failures:
        raise typer.Exit(1)


@app.command()
def demo(
    folder: Annotated[Path, typer.Option("--out", help="Where the report goes.")] = Path("demo_report"),
    samples: Annotated[int, typer.Option("--samples", "-n", help="How many digits.", min=2)] = 64,
    seed: Seed = 0,
) -> None:
    """Audit the explanations of a small CNN on handwritten digits and write the report."""
    check_writable(folder / "report.html")
    task = vd.tasks.load("digits")
    result = vd.audit(task, samples=samples, seed=seed, budget=DEMO_ROWS)
    show(result)
    write(result, folder)


def foretell(task: vd.Task, explainers: list[str] | None, effort: str, samples: int | None) -> None:
    """Say what prompts cost before the work begins: one row may take half a second."""
    plan = effort_of(effort, task)
    names = explainers or list(choose_explainers(task, None, plan).explainers)
    few = task[: min(len(task), samples or plan.samples)]
    out.print(
        f"To explain and to remove units takes {escape(str(vd.data.estimate(few, names)))}", soft_wrap=True
    )
    out.print("Controls and copies of the model with other weights come on top.\n")


def show(result: Audit) -> None:
    """Print the verdict: the words first, then the table behind them."""
    for i, sentence in enumerate(result.sentences):
        out.print(f"[bold]{escape(sentence)}[/bold]" if i == 0 else escape(sentence), soft_wrap=True)
    table = Table(box=None)
    for title in ("explainer", "beats controls", "95% interval", "samples", "verdict"):
        table.add_column(title, justify="left" if title in ("explainer", "verdict") else "right")
    for place in result.verdict.places:
        known = place.score == place.score
        word = place.status + (f", group {place.group}" if place.group else "")
        table.add_row(
            escape(place.explainer),
            f"{place.score:.0%}" if known else "",
            f"{place.low:.0%} to {place.high:.0%}" if known else "",
            str(place.samples),
            word if place.control or place.trusted else f"[red]{word}[/red]",
        )
    out.print()
    out.print(table)
    if result.concepts is not None and result.concepts.verdict is not None:
        out.print("\nConcepts: " + escape(" ".join(result.concepts.verdict.sentences)), soft_wrap=True)


def write(result: Audit, folder: Path) -> None:
    """Write the report, the verdict as data and the tables, and say where."""
    from veridical.report.audit import write_folder

    page = write_folder(result, folder)
    out.print(f"\nThe report is in [bold]{escape(str(page))}[/bold]", soft_wrap=True)
