"""`veridical audit`: from a model to a verdict."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any, cast

import typer

import veridical as vd
from veridical.auditing import EFFORTS, Audit
from veridical.auditing.candidates import CRITERIA
from veridical.auditing.verdict import Verdict
from veridical.cli.app import Status, app, end, print_table, save_plot, say
from veridical.cli.sources import Explainers, Folder, Maps, Seed, Source, with_maps, with_options
from veridical.core.files import read_file, write_file
from veridical.errors import StorageError
from veridical.values.tables import check_writable, write_csv

UNFINISHED = "unfinished"
"""The folder, inside that of the report, of what is finished before the report is."""
CONCEPT_METHODS = ("pca", "kmeans", "ica", "nmf", "cdisco", "ice", "craft", "c-shap", "mcd", "hu-mcd", "sae")


@app.command()
@with_options(without=())
def audit(
    source: Source,
    explainer: Explainers = None,
    maps: Maps = None,
    effort: Annotated[str, typer.Option(help=f"How much to do: {', '.join(EFFORTS)}.")] = "quick",
    concepts: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Concepts to compare: none, a dictionary's file, or {', '.join(CONCEPT_METHODS)}. Repeat."
        ),
    ] = None,
    criterion: Annotated[
        list[str] | None, typer.Option(help=f"What must hold: {', '.join(CRITERIA)}; all by default. Repeat.")
    ] = None,
    metric: Annotated[list[str] | None, typer.Option(help="Metrics that decide in place of ours.")] = None,
    control: Annotated[list[str] | None, typer.Option(help="Controls to beat in place of ours.")] = None,
    budget: Annotated[int | None, typer.Option(help="Rows the model may evaluate.", min=1)] = None,
    describe: Annotated[
        bool | None,
        typer.Option(help="Measure what decides nothing, too. [default: at standard and thorough]"),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what it would evaluate, and how long that takes.")
    ] = False,
    folder: Folder = Path("audit"),
    seed: Seed = 0,
) -> None:
    """Which explainer to use for a model, which not to trust, and how sure that is.

    What is finished is kept in the output folder until the report is there: after Ctrl-C the same command
    goes on. Exit status 0 says that a method may be used, 1 that none may, 3 that it is not decided.

    Example: veridical audit --task digits
    Example: veridical audit --model ./my-classifier --data reviews.jsonl --labels label
    Example: veridical audit --model ./my-language-model --data prompts.jsonl --units sentence
    """
    settings: dict[str, Any] = {
        "effort": effort,
        "seed": seed,
        "samples": source.samples,
        "criteria": criterion,
        "metrics": metric,
        "controls": control,
        "budget": budget,
        "concepts": concepts_of(concepts),
        "describe": describe,
    }
    if not dry_run:
        check_writable(folder / "report.html")
    chosen = replace(source, samples=None).load()  # the audit itself takes some of its samples
    settings["explainers"] = with_maps(explainer, maps, chosen)
    if dry_run:
        say(repr(vd.audit(chosen, dry_run=True, **settings)))
        return
    kept = folder / UNFINISHED
    try:
        kept.mkdir(parents=True, exist_ok=True)  # refuse a place that cannot be written to before the work
    except OSError as error:
        raise StorageError.of("written", folder, error) from error
    try:
        result = vd.audit(chosen, folder=kept, **settings)
    except KeyboardInterrupt:
        done = len(list(kept.iterdir()))
        say(f"\nStopped; {done} finished pieces are kept, and the same command goes on from there.")
        raise typer.Exit(Status.INTERRUPTED) from None
    result = replace(result, call=f"veridical {shlex.join(sys.argv[1:])}")
    show(result, folder)
    shutil.rmtree(kept, ignore_errors=True)
    end(status_of(result.verdict))


def status_of(verdict: Verdict) -> Status:
    """Good if a method may be used; open while any method is not decided; else a finding."""
    if verdict.best is not None:
        return Status.GOOD
    undecided = verdict.why_none or any(place.status == "not decided" for place in verdict.ranking)
    return Status.OPEN if undecided else Status.FINDING


@app.command()
@with_options(without=())
def check(
    source: Source,
    against: Annotated[Path, typer.Option(help="The audit.json, or its folder, of the model before.")],
    other: Annotated[
        list[str] | None, typer.Option(help="A model trained like the old one, for the null. Repeat.")
    ] = None,
    explainer: Explainers = None,
    budget: Annotated[
        int | None, typer.Option(help="Rows of the model; a tenth of the audit's by default.", min=1)
    ] = None,
    folder: Folder = Path("check"),
) -> None:
    """After a retraining: do the explanations that were trusted still hold, and do they say the same?

    Data are those of the audit's own command where they are not given. Exit status 0: they hold; 1: a method
    is refuted, hides a feature or shows less, or a feature gained or lost relevance; 3: not decided. Writes
    check.json, junit.xml, summary.md and drift.csv.

    Example: veridical check --against audit --model new-model
    """
    from veridical.report.check import junit, summary

    chosen = as_audited(source, against)
    others = [replace(chosen, model=model).load() for model in other or ()]
    found = vd.check(against, chosen.load(), explainers=explainer, others=others, budget=budget)
    for sentence in found.sentences:
        say(sentence)
    texts = {
        "junit.xml": junit(found),
        "summary.md": summary(found),
        "check.json": json.dumps(found.to_json()),
    }
    for name, text in texts.items():
        write_file(folder / name, text, private=False)
    write_csv(found.drift(), folder / "drift.csv")
    if found.changes:
        save_plot(found.plot, folder / "drift.png")
    say(f"check.json, junit.xml, summary.md and drift.csv are in {folder}")
    end(Status(found.status))


def as_audited(source: Source, against: Path) -> Source:
    """The options of an audit's own command, with those that are given now in their place."""
    place = against / "audit.json" if against.is_dir() else against
    try:
        called = str(json.loads(read_file(place)).get("call", ""))
    except (OSError, ValueError) as error:
        raise StorageError.of("read", place, error) from error

    def named(values: Mapping[str, Any]) -> dict[str, Any]:
        some = {option.name: values.get(option.name) for option in fields(Source)}
        return {name: value for name, value in some.items() if value is not None and value is not False}

    given, then = named(vars(source)), dict[str, Any]()
    if called.startswith("veridical audit "):
        own = cast(typer.core.TyperGroup, typer.main.get_command(app)).commands["audit"]
        parsed = own.make_context("audit", shlex.split(called)[2:], resilient_parsing=True).params
        # code runs where it is allowed now, and the audit took some of the samples itself
        dropped = {"allow_code", "samples"} | ({"task"} if "model" in given else set())
        then = {name: value for name, value in named(parsed).items() if name not in dropped}
    return Source(**{**then, **given})


@app.command()
def demo(
    folder: Folder = Path("demo_report"),
    samples: Annotated[int, typer.Option("--samples", "-n", help="How many digits.", min=2)] = 64,
    seed: Seed = 0,
) -> None:
    """Audit the explanations of a small CNN on handwritten digits and write the report."""
    check_writable(folder / "report.html")
    result = vd.audit(vd.tasks.load("digits"), samples=samples, seed=seed)
    show(result, folder)
    end(status_of(result.verdict))


def show(result: Audit, folder: Path) -> None:
    """Print the verdict, the words first, then the table behind them; and write the report."""
    from veridical.report.audit import write_folder

    words = result.verdict.words
    say(words.answer[0], "bold")
    say(" ".join(words.answer[1:]))
    for part in (words.methods, words.remarks):
        say("")
        for sentence in part:
            say(sentence)
    rows, red = [], set()
    for place in result.ranking:
        share = interval = ""
        if place.score == place.score:
            share, interval = f"{place.score:.0%}", f"{place.low:.0%} to {place.high:.0%}"
        word = place.status + (f", group {place.group}" if place.group else "")
        rows.append((place.explainer, share, interval, place.samples, word))
        if not place.trusted:
            red.add(word)
    say("")
    columns = ("explainer", "beats controls", "99% interval", "samples", "verdict")
    print_table(columns, rows, left="verdict", red=red)
    if result.concepts is not None and result.concepts.verdict is not None:
        say("\nConcepts: " + " ".join(result.concepts.verdict.sentences))
    say(f"\nThe report is in {write_folder(result, folder)}")


def concepts_of(words: Sequence[str] | None) -> Any:
    """What `vd.audit(concepts=...)` takes: methods by name, and dictionaries from files.

    None leaves the choice to the audit, `none` alone compares nothing.
    """
    from veridical.concepts.materials import entries
    from veridical.dictionaries import load

    if words is None or list(words) == ["none"]:
        return None if words is None else []
    files = {word: Path(word) for word in words if Path(word).suffix == ".safetensors" or Path(word).is_dir()}
    return entries({files[w].stem if w in files else w: load(files[w]) if w in files else w for w in words})
