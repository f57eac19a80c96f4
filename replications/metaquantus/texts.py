"""Tables in Markdown: ours beside what is printed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

import veridical as vd
from replications.metaquantus.printed import TABLE_2
from replications.metaquantus.tables import Table
from veridical.meta import ENTRIES, Different, Same, meta_evaluate

NAMES = {
    "paper": "ours by the paper",
    "published": "ours as published",
    "directed": "as published, by direction",
}
Printed = Mapping[str, Mapping[str, Any]]


def benchmark_table(frames: Mapping[str, pd.DataFrame], printed: Printed) -> str:
    """Ours beside the paper's Table 3 or 5, one line a metric and test."""
    names = [f"{name} MC ± std" for name in frames], [f"{name} vector" for name in frames]
    head = ["metric", "test", "paper MC", *names[0], "paper vector", *names[1], "permuted maps change"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    tables = {name: frame.set_index(["metric", "test"]) for name, frame in frames.items()}
    some = next(iter(tables.values()))
    for metric in printed:
        for test in ("mpt", "ipt", "mean"):
            rows = [table.loc[(metric, test)] for table in tables.values()]
            cells = [metric, test, _number(_printed_mc(printed, metric, test))]
            cells += [f"{row['mc']:.3f} ± {row['mc_std']:.3f}" for row in rows]
            cells += ["" if test == "mean" else _vector(printed[metric][test][1:])]
            cells += [_vector([float(row[entry]) for entry in ENTRIES]) for row in rows]
            cells += [f"{some.loc[(metric, test)]['dependence']:.0%}"]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def orderings(frames: Mapping[str, pd.DataFrame], printed: Printed) -> str:
    """Which of the two metrics of each category leads, in the paper and in ours, by test.

    A lead below two standard deviations, the paper's rule, is called a tie.
    """
    lines = ["| category | test | paper | " + " | ".join(frames) + " |", "|---" * (3 + len(frames)) + "|"]
    some = next(iter(frames.values()))
    for category, part in some[some["test"] == "mean"].groupby("category", sort=False):
        labels = list(part["metric"])
        for test in ("mpt", "ipt", "mean"):
            figures = {label: _printed_mc(printed, label, test) for label in labels}
            known = all(value == value for value in figures.values())
            first = max(labels, key=lambda label: figures[label]) if known else "(a row is lost)"
            cells = [str(category), test, first]
            for frame in frames.values():
                rows = frame[frame["test"] == test].set_index("metric").loc[labels]
                ours, lead = rows["mc"].idxmax(), rows["mc"].max() - rows["mc"].min()
                verdict = "" if not known else ": holds" if ours == first else ": reversed"
                tie = " (a tie)" if lead <= 2 * rows["mc_std"].max() else ""
                cells.append(f"{ours}{verdict}{tie}")
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def table_2(task: vd.Task, draws: int, iterations: int) -> str:
    """The sanity estimators with four cheap explainers, beside what is expected and what is printed."""
    names = ["gradient", "saliency", "input_x_gradient", "constant"]
    result = meta_evaluate(
        task, [Different(), Same()], names, draws=draws, iterations=iterations, resamples=0
    )
    lines = ["| estimator | test | expected | paper (L = 4) | ours (L = 4) |", "|---|---|---|---|---|"]
    for metric in ("different", "same"):
        for test in ("ipt", "mpt"):
            printed: Mapping[str, Any] = TABLE_2[metric]
            expected = ", ".join(map(str, printed["expected"]))
            ours = _vector(result[metric, test].vector.tolist())
            lines.append(f"| {metric} | {test} | {expected} | {_vector(printed[test])} | {ours} |")
    return "\n".join(lines)


def other_table(table: Table, frames: Mapping[tuple[str, str], list[pd.DataFrame]]) -> str:
    """MC of both tests by rule and set of explainers, beside what is printed."""
    columns = [f"{label}, {NAMES[rule]}" for rule, label in frames]
    lines = ["| metric | paper | " + " | ".join(columns) + " | permuted maps change |"]
    lines.append("|---" * (3 + len(columns)) + "|")
    joined = {place: pd.concat(parts).set_index(["metric", "test"]) for place, parts in frames.items()}
    for metric in [name for group in table.groups for name in group]:
        found = {place: f.loc[(metric, "mean")] for place, f in joined.items() if (metric, "mean") in f.index}
        if not found:
            continue
        cells = [metric, f"{table.printed[metric]:.3f}" if metric in table.printed else ""]
        for place, frame in joined.items():
            if place not in found:
                cells.append("not run")
                continue
            tests = [f"{frame.loc[(metric, test)]['mc']:.2f}" for test in ("mpt", "ipt")]
            row = found[place]
            cells.append(f"{row['mc']:.3f} ± {row['mc_std']:.3f} (MPT {tests[0]}, IPT {tests[1]})")
        cells.append(f"{next(iter(found.values()))['dependence']:.0%}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def markdown(frame: pd.DataFrame, digits: int = 3) -> str:
    """A frame as a Markdown table."""
    lines = ["| " + " | ".join(map(str, frame.columns)) + " |", "|---" * len(frame.columns) + "|"]
    for row in frame.itertuples(index=False):
        cells = [f"{value:.{digits}f}" if isinstance(value, float) else str(value) for value in row]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _printed_mc(printed: Printed, metric: str, test: str) -> float:
    found = printed[metric][test]
    return found if isinstance(found, float) else float(found[0])


def _number(value: float) -> str:
    return f"{value:.3f}" if value == value else "lost"


def _vector(values: tuple[object, ...] | list[float]) -> str:
    return ", ".join(_number(float(v)) if isinstance(v, float) else str(v) for v in values)
