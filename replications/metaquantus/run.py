"""The tables and figures of the MetaQuantus paper, and tables of two other papers that rest on it.

    VERIDICAL_DATA=... python -m replications.metaquantus.run --out results --device cuda --processes 3
    VERIDICAL_DATA=... python -m replications.metaquantus.run --out results --table 5 --quick \\
        --samples 56 --draws 2 --iterations 2 --neighbours 3

The full size is 1,024 samples (384 of cMNIST), K = 5 draws, 3 iterations. Tables: 3 (with 2), 5, grid and
networks (figures 10, 8, 15), gef-a1 and gef-a2 (GEF paper), qge-5 (QGE paper). With `--processes` parts of a
table run at the same time. All scores are kept in `parts/`; `--minutes` ends the run in time and keeps the
draws that are whole; `--report` makes tables and pictures of what is kept and runs nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from replications.metaquantus.data import given_masks_agree, mnist
from replications.metaquantus.parts import run_together, save_part, stopped_at, whole_draws
from replications.metaquantus.report import report
from replications.metaquantus.studies import TABLES, Study, studies
from replications.metaquantus.texts import table_2
from veridical.meta import MetaEvaluation, meta_evaluate

SHARED = ("out", "networks", "samples", "draws", "iterations", "neighbours", "epochs", "device")
"""Options that a process for one iteration gets as they are."""


def evaluate(chosen: argparse.Namespace, label: str, study: Study, rule: str, numbers: list[int]) -> None:
    """Score some iterations of one study and keep each, of an interrupted one the whole draws."""
    task = study.task(chosen)
    published = rule == "published"
    accuracy = float((task.predictions == task.labels).double().mean())
    for number in numbers:
        start = time.perf_counter()
        path = chosen.out / "parts" / f"{label}_{rule}_{number}.npz"
        path.unlink(missing_ok=True)
        with stopped_at(chosen.until - time.time() + time.monotonic() if chosen.until else 0.0):
            result = meta_evaluate(
                task,
                study.metrics,
                study.explainers,
                draws=chosen.draws,
                iterations=[number],
                published=published,
                same_draws=study.fixed if published else False,
                resamples=0,
            )
        for failure in result.failures:
            print(f"{failure.metric} failed: {failure.message}", flush=True)
        if result.interrupted:
            print(f"{label}, {rule}, {number}: out of time", flush=True)
            whole = whole_draws(result)
            if whole is not None:
                save_part(whole, path)
            return
        save_part(result, path)
        about = {"study": label, "rule": rule, "iterations": [number], "accuracy": round(accuracy, 3)}
        log(chosen, about | counts(result), start)


def counts(result: MetaEvaluation) -> dict[str, Any]:
    """How many explanations were made, each for all metrics."""
    return {"shared explanations": result.explanations}


def log(chosen: argparse.Namespace, about: dict[str, Any], start: float) -> None:
    """A line on the screen and in log.jsonl: what is done, seconds, memory."""
    about |= {"seconds": round(time.perf_counter() - start, 1), "samples": chosen.samples}
    if torch.cuda.is_available():
        about["GPU MiB"] = torch.cuda.max_memory_allocated() // 2**20
    with (chosen.out / "log.jsonl").open("a") as file:
        file.write(json.dumps(about) + "\n")
    print(about, flush=True)


def all_studies(chosen: argparse.Namespace) -> None:
    """Every study by every rule asked for, iterations one after the other or side by side."""
    found = studies(chosen.table, chosen.quick, chosen.neighbours)
    labels = [label for label in found if chosen.study is None or label in chosen.study]
    for world in {found[label].world for label in labels} - {"MNIST"}:
        # trained once, before several processes want it
        replace(found[labels[0]], world=world).task(argparse.Namespace(**vars(chosen) | {"samples": 8}))
    jobs = [(label, rule) for label in labels for rule in chosen.only]
    if chosen.processes == 1:
        for label, rule in jobs:
            numbers = chosen.numbers or list(range(chosen.iterations))
            evaluate(chosen, label, found[label], rule, numbers)
        return
    shared = [
        word
        for name in SHARED
        if getattr(chosen, name) is not None
        for word in (f"--{name}", str(getattr(chosen, name)))
    ]
    base = [sys.executable, "-m", "replications.metaquantus.run", "--table", chosen.table, *shared]
    base += ["--quick"] * chosen.quick + ["--until", str(chosen.until)]
    numbers = [str(number) for number in range(chosen.iterations)]
    # of the dear tables each iteration has a process of its own
    pieces = [[number] for number in numbers] if chosen.table in ("3", "5") else [numbers]
    commands = [
        [*base, "--study", label, "--only", rule, "--numbers", *piece]
        for label, rule in jobs
        for piece in pieces
    ]
    run_together(commands, chosen.processes)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--table", default="3", choices=TABLES)
    parser.add_argument("--study", nargs="*", help="some of the table's studies only")
    parser.add_argument("--networks", type=Path, help="where networks trained on cMNIST are kept")
    parser.add_argument("--samples", type=int, default=1024)
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--numbers", type=int, nargs="*", help="these iterations only, without a report")
    parser.add_argument(
        "--processes", type=int, default=1, help="studies, of tables 3 and 5 iterations, at once"
    )
    parser.add_argument("--neighbours", type=int, default=10, help="draws of the robustness estimators")
    parser.add_argument("--epochs", type=int, help="of training on cMNIST")
    parser.add_argument("--quick", action="store_true", help="few steps and windows")
    parser.add_argument("--only", nargs="*", default=["paper", "published"], choices=["paper", "published"])
    parser.add_argument("--minutes", type=float, default=0, help="end after so long with what is whole")
    parser.add_argument("--until", type=float, default=0.0, help="the same as a time of the clock")
    parser.add_argument("--report", action="store_true", help="tables and pictures of what is kept")
    parser.add_argument("--device")
    chosen = parser.parse_args()
    chosen.networks = chosen.networks or chosen.out
    if chosen.minutes:
        chosen.until = time.time() + 60 * chosen.minutes
    return chosen


def main() -> None:
    chosen = options()
    chosen.out.mkdir(parents=True, exist_ok=True)
    if chosen.numbers is not None:
        all_studies(chosen)
        return
    if not chosen.report:
        if chosen.table == "3":
            agree = {True: "equal", False: "differ from", None: "could not be compared with"}
            print(f"the boxes {agree[given_masks_agree()]} the 50 given masks", flush=True)
            task, start = mnist(chosen.samples), time.perf_counter()
            task = task if chosen.device is None else task.to(chosen.device)
            text = table_2(task, chosen.draws, chosen.iterations)
            (chosen.out / "table2.md").write_text(text + "\n")
            log(chosen, {"study": "table2"}, start)
        all_studies(chosen)
    report(chosen.out, chosen.table, chosen.quick, chosen.neighbours)


if __name__ == "__main__":
    main()
