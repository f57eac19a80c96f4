"""Tables 2 and 3 of the MetaQuantus paper on the MNIST LeNet, and those of two other papers that rest on it.

    VERIDICAL_DATA=... python -m replications.metaquantus.run --out results
    VERIDICAL_DATA=... python -m replications.metaquantus.run --out results \\
        --samples 56 --draws 2 --iterations 2 --neighbours 3 --quick
    VERIDICAL_DATA=... python -m replications.metaquantus.run --out results --table gef-a1 --samples 256

The full size is 1,024 samples, K = 5 draws, 3 iterations. Tables: 3 (with 2), gef-a1 and gef-a2 (GEF paper),
qge-5 (QGE paper). Figures are written after every iteration; `--minutes` ends the run in time and keeps what
is whole.
"""

from __future__ import annotations

import argparse
import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch

import veridical as vd
from replications.metaquantus.data import given_masks_agree, mnist
from replications.metaquantus.printed import TABLE_2, TABLE_3
from replications.metaquantus.tables import OTHERS, Table, six, ten
from veridical.meta import Different, MetaEvaluation, Same, meta_evaluate

ENTRIES = ("iac_nr", "iac_ar", "iec_nr", "iec_ar")
NAMES = {
    "paper": "ours by the paper",
    "published": "ours as published",
    "directed": "as published, by direction",
}


def table_3(frames: dict[str, pd.DataFrame]) -> str:
    """Ours beside the paper's, one line a metric and test."""
    names = [f"{name} MC ± std" for name in frames], [f"{name} vector" for name in frames]
    head = ["metric", "test", "paper MC", *names[0], "paper vector", *names[1], "permuted maps change"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    tables = {name: frame.set_index(["metric", "test"]) for name, frame in frames.items()}
    some = next(iter(tables.values()))
    for metric in TABLE_3:
        for test in ("mpt", "ipt", "mean"):
            rows = [table.loc[(metric, test)] for table in tables.values()]
            cells = [metric, test, _number(_printed_mc(metric, test))]
            cells += [f"{row['mc']:.3f} ± {row['mc_std']:.3f}" for row in rows]
            cells += ["" if test == "mean" else _vector(TABLE_3[metric][test][1:])]  # type: ignore[index]
            cells += [_vector([float(row[entry]) for entry in ENTRIES]) for row in rows]
            cells += [f"{some.loc[(metric, test)]['dependence']:.0%}"]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def orderings(frames: dict[str, pd.DataFrame]) -> str:
    """Which of the two metrics of each category leads, in the paper and in ours, by test.

    A lead below two standard deviations, the paper's rule, is called a tie.
    """
    lines = ["| category | test | paper | " + " | ".join(frames) + " |", "|---" * (3 + len(frames)) + "|"]
    some = next(iter(frames.values()))
    for category, part in some[some["test"] == "mean"].groupby("category", sort=False):
        labels = list(part["metric"])
        for test in ("mpt", "ipt", "mean"):
            figures = {label: _printed_mc(label, test) for label in labels}
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
            printed = TABLE_2[metric]
            expected = ", ".join(map(str, printed["expected"]))
            ours = _vector(result[metric, test].vector.tolist())
            lines.append(f"| {metric} | {test} | {expected} | {_vector(printed[test])} | {ours} |")
    return "\n".join(lines)


def _printed_mc(metric: str, test: str) -> float:
    printed = TABLE_3[metric][test]
    return printed if isinstance(printed, float) else float(printed[0])  # type: ignore[index]


def _number(value: float) -> str:
    return f"{value:.3f}" if value == value else "lost"


def _vector(values: tuple[object, ...] | list[float]) -> str:
    return ", ".join(_number(float(v)) if isinstance(v, float) else str(v) for v in values)


@contextmanager
def stopped_at(end: float) -> Iterator[None]:
    """Interrupt what runs inside at this time of the monotonic clock; the evaluation keeps what it has."""

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(0.1, end - time.monotonic()) if end else 0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Runner:
    """The size of the runs, where they write, and when they must be over."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        self.chosen = chosen
        self.out: Path = chosen.out
        self.end = time.monotonic() + 60 * chosen.minutes if chosen.minutes else 0.0

    @property
    def over(self) -> bool:
        return bool(self.end) and time.monotonic() >= self.end

    def evaluate(self, task: vd.Task, metrics: Any, explainers: Any, rule: str, label: str) -> Any:
        """One meta-evaluation; of an interrupted one its whole iterations, or None without any."""
        whole: list[MetaEvaluation] = []
        start = time.perf_counter()

        def keep(result: MetaEvaluation) -> None:
            whole.append(replace(result, resamples=0))
            done = next(iter(result.kept.values())).shape[0]
            whole[-1].to_frame().to_csv(self.out / f"{label}_{rule}.csv", index=False)
            self.log({"table": label, "rule": rule, "iterations": done}, start)

        # the published program seeds these two anew at every call, so that they repeat their draws
        same = ("random_logit", "mprt") if rule == "published" and label == "table3" else False
        with stopped_at(self.end):
            result = meta_evaluate(
                task,
                metrics,
                explainers,
                draws=self.chosen.draws,
                iterations=self.chosen.iterations,
                published=rule == "published",
                same_draws=same,
                resamples=self.chosen.resamples,
                device=self.chosen.device,
                after_iteration=keep,
            )
        if result.interrupted:
            print(f"{label}, {rule}: out of time after {len(whole)} whole iterations", flush=True)
            return whole[-1] if whole else whole_draws(result)
        for failure in result.failures:
            print(f"{failure.metric} failed: {failure.message}", flush=True)
        return result

    def log(self, about: dict[str, Any], start: float) -> None:
        """A line on the screen and in log.jsonl: what is done, seconds, memory."""
        about |= {"seconds": round(time.perf_counter() - start, 1), "samples": self.chosen.samples}
        if torch.cuda.is_available():
            about["GPU MiB"] = torch.cuda.max_memory_allocated() // 2**20
        with (self.out / "log.jsonl").open("a") as file:
            file.write(json.dumps(about) + "\n")
        print(about, flush=True)

    def table_3(self, task: vd.Task) -> None:
        """Table 3 by both rules, rewritten after each."""
        frames: dict[str, pd.DataFrame] = {}
        for rule in self.chosen.only:
            if self.over:
                break
            explainers = six(self.chosen.quick)
            result = self.evaluate(task, ten(self.chosen.neighbours), explainers, rule, "table3")
            if result is None:
                continue
            print(replace(result, resamples=0), flush=True)
            frames[rule] = replace(result, resamples=0).to_frame()
            frames[rule].to_csv(self.out / f"table3_{rule}.csv", index=False)
            named = {NAMES[done]: frame for done, frame in frames.items()}
            text = f"{table_3(named)}\n\n{orderings(named)}\n"
            (self.out / "table3.md").write_text(text)
            _pictures(result, self.out, rule)
            if result.resamples and not self.over:
                result.to_frame().to_csv(self.out / f"table3_{rule}.csv", index=False)
                for test in ("ipt", "mpt", "mean"):
                    result.compare(test).to_csv(self.out / f"pairs_{rule}_{test}.csv", index=False)
        if frames:
            print(text)

    def other(self, task: vd.Task, name: str) -> None:
        """A table of another paper: MC of every metric, mean and spread over its sets of explainers."""
        table = OTHERS[name](self.chosen.quick, self.chosen.neighbours)
        frames: dict[tuple[str, str], list[pd.DataFrame]] = {}
        for group in table.groups:
            for rule in self.chosen.only:
                for place, (label, explainers) in enumerate(table.sets.items()):
                    if self.over:
                        return
                    first = next(iter(group)).split()[0]
                    result = self.evaluate(task, group, explainers, rule, f"{name}_{first}_{place + 1}")
                    if result is not None:
                        frames.setdefault((rule, label), []).append(replace(result, resamples=0).to_frame())
                        if rule == "published":  # the same worlds, with IEC_AR by each metric's direction
                            directed = replace(result, resamples=0, published=False)
                            frames.setdefault(("directed", label), []).append(directed.to_frame())
                        (self.out / f"{name}.md").write_text(other_table(table, frames))
        print((self.out / f"{name}.md").read_text())


def whole_draws(result: MetaEvaluation) -> MetaEvaluation | None:
    """Of a result that was interrupted in its first iteration, the draws of which every world was visited."""
    scored = [
        ~scores[0].isnan().all(-1).all(-1) for b in result.books.values() for scores in b.scores.values()
    ]
    count = int(torch.stack(scored).all(0).sum()) if scored else 0
    if not count:
        return None
    books = {
        label: replace(book, scores={place: scores[:1, :count] for place, scores in book.scores.items()})
        for label, book in result.books.items()
    }
    kept = {place: values[:1, :count] for place, values in result.kept.items()}
    print(f"{count} draws of the first iteration are whole", flush=True)
    return replace(result, books=books, kept=kept, resamples=0)


def other_table(table: Table, frames: dict[tuple[str, str], list[pd.DataFrame]]) -> str:
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


def _pictures(result: MetaEvaluation, out: Path, rule: str) -> None:
    try:
        result.plot()[0, 0].figure.savefig(out / f"areas_{rule}.png", dpi=120)
    except ImportError as error:
        print(f"no picture: {error}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--table", default="3", choices=["3", *OTHERS])
    parser.add_argument("--samples", type=int, default=1024)
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--neighbours", type=int, default=10, help="draws of the robustness estimators")
    parser.add_argument("--quick", action="store_true", help="5 steps and 7 x 7 windows, not 32 and 4 x 4")
    parser.add_argument("--only", nargs="*", default=["paper", "published"], choices=["paper", "published"])
    parser.add_argument("--resamples", type=int, default=200, help="of the bootstrap; 0 for none")
    parser.add_argument("--minutes", type=float, default=0, help="end after so long with what is whole")
    parser.add_argument("--device", default=None)
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    agree = {True: "equal", False: "differ from", None: "could not be compared with"}[given_masks_agree()]
    print(f"the boxes {agree} the 50 given masks; torch {torch.__version__}", flush=True)
    task = mnist(chosen.samples)
    task = task if chosen.device is None else task.to(chosen.device)
    runner = Runner(chosen)
    if chosen.table != "3":
        runner.other(task, chosen.table)
        return
    start = time.perf_counter()
    (chosen.out / "table2.md").write_text(table_2(task, chosen.draws, chosen.iterations) + "\n")
    runner.log({"table": "2"}, start)
    print((chosen.out / "table2.md").read_text(), flush=True)
    runner.table_3(task)


if __name__ == "__main__":
    main()
