"""Tables and pictures of the scores that a run has kept; nothing is computed on a model here."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

import veridical as vd
from replications.metaquantus import comparisons
from replications.metaquantus.parts import load_all, summary
from replications.metaquantus.printed import TABLE_3, TABLE_5
from replications.metaquantus.studies import studies
from replications.metaquantus.tables import A_5_2, OTHERS, SIX
from replications.metaquantus.texts import NAMES, benchmark_table, markdown, orderings, other_table
from veridical.meta import MetaEvaluation
from veridical.values.scores import Direction

RULES = ("published", "directed", "paper")
HIGHER_TO_THE_PROGRAM = ("pixel_flipping",)
"""In Tables 3 and 5 the program calls a larger flipping area better; to the papers, and here, it is worse."""
TESTS = ("ipt", "mpt", "mean")


def report(out: Path, table: str, quick: bool, neighbours: int) -> None:
    """Write the tables and pictures of one table, as far as its scores are there."""
    if table in OTHERS:
        _other(out, table, quick, neighbours)
        return
    results = {
        (label, rule): found
        for label in studies(table, quick, neighbours)
        for rule in RULES
        if (found := _kept(out, label, rule)) is not None
    }
    for (label, rule), result in results.items():
        few = _six(result) if table in ("3", "5") else result
        (out / f"{label}_{rule}.json").write_text(json.dumps(summary(few)))
        few.to_frame().to_csv(out / f"{label}_{rule}.csv", index=False)
        print(label, rule, f"{len(result.iterations)} iterations", flush=True)
    if table in ("3", "5"):
        _benchmark(out, f"table{table}", {rule: result for (_, rule), result in results.items()})
    elif table == "grid":
        for (label, rule), result in results.items():
            _picture(out / f"{label}_{rule}.png", lambda r=result: vd.meta.plot_settings(r))  # type: ignore[misc]
    else:
        _networks(out, results)
    for rule in RULES:
        _across(out, rule)


def _kept(out: Path, label: str, rule: str) -> MetaEvaluation | None:
    """The result of a study by a rule; by direction it has the worlds of the published rule."""
    if rule == "directed":
        published = load_all(out, label, "published")
        if published is not None and _has_scores(published):
            return directed(published)
    return load_all(out, label, rule)


def _has_scores(result: MetaEvaluation) -> bool:
    return all(scores.numel() for book in result.scores.values() for scores in book.unperturbed.values())


def directed(result: MetaEvaluation) -> MetaEvaluation:
    """The same scores with IEC_AR by each metric's direction, as the program labels it."""
    scores = {
        label: replace(table, direction=Direction.HIGHER) if label in HIGHER_TO_THE_PROGRAM else table
        for label, table in result.scores.items()
    }
    return replace(result, scores=scores, published=False)


def _benchmark(out: Path, label: str, results: dict[str, MetaEvaluation]) -> None:
    """Table 3 or 5 with the six explainers, and what else its scores tell: figures 5, 7, 9 and 10 right."""
    printed = TABLE_3 if label == "table3" else TABLE_5
    frames: dict[str, pd.DataFrame] = {}
    for rule, every in results.items():
        result = _six(every)
        frames[NAMES[rule]] = result.to_frame()
        frames[NAMES[rule]].to_csv(out / f"{label}_{rule}.csv", index=False)
        _picture(out / f"{label}_areas_{rule}.png", result.plot)
        _picture(out / f"{label}_scatter_{rule}.png", lambda r=result: comparisons.scatter(r))  # type: ignore[misc]
        convergence = comparisons.category_convergence(result)
        convergence.to_csv(out / f"{label}_convergence_{rule}.csv", index=False)
        _picture(
            out / f"{label}_convergence_{rule}.png",
            lambda table=convergence: comparisons.plot_convergence(table),  # type: ignore[misc]
        )
        stored = out / f"{label}_sets_{rule}.csv"
        if every is not result:
            comparisons.explainer_dependence(every, A_5_2).to_csv(stored, index=False)
        if not stored.is_file():
            continue
        sets = pd.read_csv(stored)
        _picture(out / f"{label}_sets_{rule}.png", lambda table=sets: comparisons.plot_explainer_sets(table))  # type: ignore[misc]
        wide = sets.groupby("metric", sort=False)["mc"].agg(["min", "mean", "max", "std"]).reset_index()
        (out / f"{label}_sets_{rule}.md").write_text(markdown(wide))
    if frames:
        text = f"{benchmark_table(frames, printed)}\n\n{orderings(frames, printed)}\n"
        (out / f"{label}.md").write_text(text)


def _six(result: MetaEvaluation) -> MetaEvaluation:
    """The result for the six explainers of the tables; vectors alone are theirs already."""
    return result if result.explainers == SIX else comparisons.with_explainers(result, SIX)


def _networks(out: Path, results: dict[tuple[str, str], MetaEvaluation]) -> None:
    """Figures 8 and 15 (left): the same metrics on several networks, side by side."""
    for kind in ("places", "spread"):
        for rule in RULES:
            found = {
                label.partition("-")[2]: result
                for (label, by), result in results.items()
                if by == rule and label.startswith(f"{kind}-")
            }
            if found:
                table = comparisons.side_by_side(found)
                kept = ["world", "metric", "mc", "mc_std", *vd.meta.ENTRIES, "dependence"]
                (out / f"networks_{kind}_{rule}.md").write_text(markdown(table[kept]))
                _picture(out / f"networks_{kind}_{rule}.png", lambda r=found: comparisons.area_grid(r))  # type: ignore[misc]


def _across(out: Path, rule: str) -> None:
    """Figures 6 and 15 (right), from the benchmarks of both worlds."""
    worlds = {"MNIST, LeNet": "table3", "cMNIST, ResNet-9": "table5"}
    found = {
        world: _six(result)
        for world, label in worlds.items()
        if (result := _kept(out, label, rule)) is not None
    }
    if len(found) < 2:
        return
    averages = comparisons.category_averages(found)
    (out / f"categories_{rule}.md").write_text(markdown(averages))
    _picture(out / f"categories_{rule}.png", lambda: comparisons.plot_categories(averages))
    sides = comparisons.side_by_side(found)
    _picture(out / f"worlds_{rule}.png", lambda: comparisons.plot_side_by_side(sides))
    for test in TESTS:
        wins = comparisons.ranking_consistency(found, test)
        (out / f"wins_{rule}_{test}.md").write_text(markdown(wins))
        _picture(out / f"wins_{rule}_{test}.png", lambda table=wins: comparisons.plot_wins(table))  # type: ignore[misc]


def _other(out: Path, name: str, quick: bool, neighbours: int) -> None:
    """A table of another paper: MC of every metric, mean and spread over its sets of explainers."""
    table = OTHERS[name](quick, neighbours)
    frames: dict[tuple[str, str], list[pd.DataFrame]] = {}
    for label in studies(name, quick, neighbours):
        chosen = list(table.sets)[int(label.rpartition("_")[2]) - 1]
        for rule in RULES:
            result = _kept(out, label, rule)
            if result is None:
                continue
            (out / f"{label}_{rule}.json").write_text(json.dumps(summary(result)))
            result.to_frame().to_csv(out / f"{label}_{rule}.csv", index=False)
            frames.setdefault((rule, chosen), []).append(result.to_frame())
    if frames:
        (out / f"{name}.md").write_text(other_table(table, frames))
        print((out / f"{name}.md").read_text(), flush=True)


def _picture(path: Path, draw: Any) -> None:
    """A picture where matplotlib is there; tables alone where it is not."""
    try:
        from matplotlib import pyplot
    except ImportError:
        return
    drawn = draw()
    figure = (drawn if hasattr(drawn, "figure") else drawn[0, 0]).figure
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
