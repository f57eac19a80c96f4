"""Iterations in processes of their own: what each one writes, and how they become one result.

On a small network a GPU waits for the program most of the time, so that several programs share it well.
Results are kept as npz, which needs nothing that computes them not to have.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from veridical.meta import MetaEvaluation, Reliability, joined
from veridical.meta.consistency import MIN_SAMPLES
from veridical.meta.result import packed, unpacked


def save_part(result: MetaEvaluation, path: Path) -> None:
    """Write a result so that a reader finds the whole file or none."""
    tensors, header = packed(result)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        arrays: dict[str, Any] = {name: value.numpy() for name, value in tensors.items()}
        np.savez(file, header=np.array(json.dumps(header)), **arrays)
    part.replace(path)


def load_part(path: Path) -> MetaEvaluation:
    """Read what `save_part` wrote."""
    with np.load(path, allow_pickle=False) as stored:
        header = json.loads(str(stored["header"]))
        tensors = {name: torch.from_numpy(stored[name]) for name in stored.files if name != "header"}
    return unpacked(tensors, header)


def load_all(folder: Path, label: str, rule: str) -> MetaEvaluation | None:
    """All parts of a run that are there, joined; where only its vectors are left, a result of those."""
    paths = sorted((folder / "parts").glob(f"{label}_{rule}_*.npz"))
    if paths:
        parts = [load_part(path) for path in paths]
        fewest = min(next(iter(part.kept.values())).shape[1] for part in parts)
        return joined([first_draws(part, fewest) for part in parts])
    vectors = folder / f"{label}_{rule}.json"
    return from_summary(json.loads(vectors.read_text())) if vectors.is_file() else None


def summary(result: MetaEvaluation) -> dict[str, Any]:
    """The vectors of every iteration, which is all that tables and pictures of one set of explainers need."""
    rows = {
        label: {
            test: {
                "vectors": result[label, test].vectors.tolist(),
                "effects": result[label, test].effects.tolist(),
                "kept": list(result[label, test].kept),
            }
            for test in result.tests
        }
        for label in result.metrics
    }
    _, header = packed(result)
    return {"rows": rows, "header": header}


def from_summary(stored: dict[str, Any]) -> MetaEvaluation:
    """A result without scores: it answers what its vectors can tell."""
    header, rows = stored["header"], stored["rows"]
    count = len(header["iterations"])
    nothing = torch.ones(count, 1, MIN_SAMPLES, dtype=torch.bool)
    tensors = {f"kept/{test}/{mode}": nothing for test, mode, _ in header["amounts"]}
    for place in range(len(header["metrics"])):
        for test, mode, _ in header["amounts"]:
            tensors[f"{place}/unperturbed/{test}"] = torch.zeros(0, 0)
            tensors[f"{place}/{test}/{mode}"] = torch.zeros(count, 1, 0, 0)
    result = unpacked(tensors, header)
    found = {}
    for label in result.metrics:
        parts = [
            Reliability(
                torch.tensor(row["vectors"], dtype=torch.float64),
                torch.tensor(row["effects"], dtype=torch.float64),
                torch.empty(0, 4, dtype=torch.float64),
                (row["kept"][0], row["kept"][1]),
            )
            for row in (rows[label][test] for test in result.tests)
        ]
        found |= {(label, test): part for test, part in zip(result.tests, parts, strict=True)}
        found[label, "mean"] = Reliability(
            torch.stack([p.vectors for p in parts]).mean(0),
            torch.stack([p.effects for p in parts]).mean(0),
            parts[0].resampled,
            (sum(p.kept[0] for p in parts) / len(parts), sum(p.kept[1] for p in parts) / len(parts)),
        )
    result.__dict__["_reliabilities"] = found
    return result


def first_draws(result: MetaEvaluation, count: int) -> MetaEvaluation:
    """The result of the first draws of every iteration."""
    scores = {
        label: replace(table, perturbed={place: each[:, :count] for place, each in table.perturbed.items()})
        for label, table in result.scores.items()
    }
    kept = {place: values[:, :count] for place, values in result.kept.items()}
    return replace(result, scores=scores, kept=kept, resamples=0)


def whole_draws(result: MetaEvaluation) -> MetaEvaluation | None:
    """Of an interrupted result the draws that were scored under every perturbation, in each iteration."""
    scored = [
        ~scores.isnan().all(-1).all(-1) for b in result.scores.values() for scores in b.perturbed.values()
    ]
    whole = torch.stack(scored).all(0).all(0) if scored else torch.zeros(1, dtype=torch.bool)
    count = int(whole.long().cumprod(0).sum())
    print(f"{count} draws of {len(result.iterations)} iterations are whole", flush=True)
    return first_draws(result, count) if count else None


@contextmanager
def stopped_at(end: float) -> Iterator[None]:
    """Interrupt what runs inside at this time of the monotonic clock, or when told to end.

    The evaluation keeps what it has.
    """

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGALRM, signal.SIGTERM)}
    signal.setitimer(signal.ITIMER_REAL, max(0.1, end - time.monotonic()) if end else 0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def run_together(commands: Sequence[Sequence[str]], at_once: int) -> list[int]:
    """Run programs, so many at a time; their exit codes. When we are told to end, so are they."""
    waiting, running, codes = list(commands), [], []
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                running.append(subprocess.Popen(waiting.pop(0)))
            time.sleep(0.2)
            for program in [p for p in running if p.poll() is not None]:
                running.remove(program)
                codes.append(program.returncode)
    finally:
        for program in running:
            program.terminate()
        codes += [program.wait() for program in running]
    return codes
