"""Measure how reliable each metric is on the embedded tasks, for the cards: writes docs/reliability.json.

    python scripts/measure_reliability.py [--task NAME ...] [--metric NAME ...] [--missing] [--samples 48]

Meta-evaluation with default settings and three plain explainers, of every metric on one task of each kind of
input that it works on. The file is rewritten after every group, so that a run may be cut short and continued;
`--out` names another one, for runs side by side, and `--merge` puts such files together.
`scripts/make_cards.py` shows it beside each metric.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import veridical as vd
from veridical.metrics import ExplainerMetric
from veridical.metrics import registry as metrics

FILE = Path(__file__).resolve().parents[1] / "docs" / "reliability.json"
EXPLAINERS = ["gradient", "saliency", "input_x_gradient"]
DRAWS, ITERATIONS = 2, 2
FEW = 4
"""Metrics that go together, so that a run that is cut short loses little."""


def digits(samples: int) -> vd.Task:
    """Digits with the box around the ink as the object, so that localisation has something to find."""
    task = vd.tasks.load("digits", samples)
    lit = task.inputs[:, 0] > task.inputs.amin()
    rows, columns = (_between(lit.any(axis)) for axis in (2, 1))
    masks = rows[:, :, None] & columns[:, None, :]
    return vd.Task(task.model, task.inputs, masks=masks, train=task.train, ids=task.ids, name="digits")


def sliced(name: str, samples: int) -> vd.Task:
    """Some samples of an embedded task."""
    task = vd.tasks.load(name, samples)
    return digits(samples) if name == "digits" else task


TASKS = ("digits", "breast_cancer", "known/planted_window", "reviews")
"""One task of each kind of input: image, table, series, text."""
Cards = dict[str, dict[str, dict[str, Any]]]
"""Figures by metric and task."""


def _between(line: torch.Tensor) -> torch.Tensor:
    forth = line.to(torch.int64).cummax(-1).values
    return (forth & line.flip(-1).to(torch.int64).cummax(-1).values.flip(-1)).bool()


def groups(task: vd.Task, wanted: list[str] | None) -> list[list[str]]:
    """Map metrics of a category share their explanations and go together, a few at a time; others alone."""
    made = {n: metrics.make(n) for n in metrics if not wanted or n in wanted}
    together: dict[str, list[str]] = {}
    for name, metric in made.items():
        if metric.inapplicable_reason(task) is None:
            # what fine-tunes a copy of the model should hold up nobody
            dear = isinstance(metric, ExplainerMetric) or name.startswith("ffid")
            together.setdefault(name if dear else metric.category, []).append(name)
    return [names[at : at + FEW] for names in together.values() for at in range(0, len(names), FEW)]


def measured(task: vd.Task, label: str, names: list[str]) -> Cards:
    """The cards' figures of some metrics: MC with its spread, and whether the map is read at all."""
    result = vd.meta.meta_evaluate(
        task, names, EXPLAINERS, draws=DRAWS, iterations=ITERATIONS, resamples=0, progress=False
    )
    for failure in result.failures:
        print(f"  {failure.metric} failed: {failure.message}", flush=True)
    out: Cards = {}
    if not result.metrics:
        return out
    frame = result.to_frame()
    rows = frame[frame["test"] == "mean"].set_index("metric")
    for name in result.metrics:
        row = rows.loc[name]
        about = ("mc", "mc_std", *vd.meta.ENTRIES, "dependence")
        figures = {key: None if math.isnan(row[key]) else round(float(row[key]), 3) for key in about}
        remark = result.scores[name].dependence.remark
        found: dict[str, Any] = {
            "samples": len(task),
            "draws": DRAWS,
            "iterations": ITERATIONS,
            "explainers": EXPLAINERS,
            "date": f"{datetime.now(UTC):%Y-%m-%d}",
            **figures,
            **({"remark": remark} if remark else {}),
            **({"why": str(row["flags"])} if figures["mc"] is None else {}),
        }
        out[name] = {label: found}
    return out


def merged(first: Cards, second: Cards) -> Cards:
    """Both, the second where both have a figure; tasks in the order above."""
    out: Cards = {}
    for name in sorted({*first, *second}):
        both = {**first.get(name, {}), **second.get(name, {})}
        out[name] = {task: both[task] for task in TASKS if task in both}
    return out


def read(path: Path) -> Cards:
    return json.loads(path.read_text()) if path.is_file() else {}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--metric", nargs="+", help="some metrics only; the others keep their figures")
    parser.add_argument("--missing", action="store_true", help="only metrics that have no figures yet")
    parser.add_argument("--samples", type=int, default=48)
    parser.add_argument("--out", type=Path, default=FILE)
    parser.add_argument("--merge", type=Path, nargs="+", help="put these files into --out instead")
    given = parser.parse_args()
    warnings.simplefilter("ignore", vd.errors.VeridicalWarning)
    kept = read(given.out)
    for path in given.merge or ():
        kept = merged(kept, read(path))
        given.out.write_text(json.dumps(kept, indent=1) + "\n")
    for label in () if given.merge else given.task:
        task = sliced(label, given.samples)
        for names in groups(task, given.metric):
            left = [name for name in names if not (given.missing and label in kept.get(name, {}))]
            if not left:
                continue
            start = time.perf_counter()
            kept = merged(kept, measured(task, label, left))
            given.out.write_text(json.dumps(kept, indent=1) + "\n")
            print(f"{label}: {', '.join(left)}: {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
