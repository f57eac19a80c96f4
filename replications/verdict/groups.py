"""Do leading groups hold the best method, and are equal methods one group?

    python -m replications.verdict.groups --out results [--repeats 1000] [--workers 8]

Five methods are scored by four metrics in every sample. A score is the method's quality plus what is hard
about the sample (shared by all methods), noise that a metric's draws share between methods, and noise of its
own. Where metrics disagree, each sees qualities of its own around the common ones.
"""

from __future__ import annotations

import argparse
import json
import os
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from veridical.functional import leading_group, win_units

SIZES = (24, 64, 200)
METHODS, METRICS = 5, 4
MIN_AGREEMENT = 0.8
"""The correlation of two metrics' noise."""
PERMUTATIONS = 399


class Scenario(NamedTuple):
    """How far methods differ, in standard deviations of a score's noise, and what metrics share."""

    spread: float
    disagree: float = 0.0
    shared: float = 0.0


SCENARIOS = {
    "equal": Scenario(0.0),
    "equal, shared draws": Scenario(0.0, shared=0.7),
    "equal, metrics disagree": Scenario(0.0, disagree=0.3),
    "close": Scenario(0.15),
    "close, shared draws": Scenario(0.15, shared=0.7),
    "close, metrics disagree": Scenario(0.15, disagree=0.3),
    "clear": Scenario(1.0),
}


def simulate(scenario: Scenario, samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Pairwise units (E, E, N), and the true win rate of each method (E,)."""
    dice = torch.Generator().manual_seed(seed)
    draw = partial(torch.randn, generator=dice, dtype=torch.float64)
    quality = scenario.spread * draw(METHODS, 1)
    own = scenario.disagree * draw(METHODS, METRICS)
    if not scenario.spread:
        own = own - own.mean(1, keepdim=True)  # what one metric adds another takes: nobody is best
    seen = (quality + own)[..., None]
    noise = MIN_AGREEMENT**0.5 * draw(METHODS, 1, samples) + (1 - MIN_AGREEMENT) ** 0.5 * draw(
        METHODS, METRICS, samples
    )
    common = draw(1, METRICS, samples)
    scores = seen + (1 - scenario.shared) ** 0.5 * noise + scenario.shared**0.5 * common
    units = win_units(scores[:, None], scores[None], 1e-9).mean(2)
    gap = (seen[:, None] - seen[None])[..., 0] / (2 * (1 - scenario.shared)) ** 0.5
    truth = torch.special.ndtr(gap).mean(-1)
    truth.fill_diagonal_(0.0)
    return units, truth.sum(1) / (METHODS - 1)


def trial(name: str, seed: int) -> dict[str, object]:
    """One audit that looks at 24, 64 and 200 samples; the level is split over its three looks."""
    units, truth = simulate(SCENARIOS[name], SIZES[-1], seed)
    best = int(truth.argmax())
    racing = list(range(METHODS))
    found: dict[str, object] = {"scenario": name, "seed": seed, "gap": float(truth.max() - truth.median())}
    for size in SIZES:
        here = units[..., :size]
        alone = leading_group(here, permutations=PERMUTATIONS, seed=seed)
        kept = [
            racing[i]
            for i in leading_group(
                here[racing][:, racing], analyses=len(SIZES), permutations=PERMUTATIONS, seed=seed
            )
        ]
        racing = kept
        found[str(size)] = {
            "kept": len(alone),
            "holds": best in alone,
            "raced": len(racing),
            "eliminated holds": best in racing,
        }
    return found


def summary(trials: list[dict[str, object]]) -> dict[str, object]:
    """Shares over trials, and claims by how high they were."""
    told: dict[str, object] = {}
    for name in SCENARIOS:
        rows = [t for t in trials if t["scenario"] == name]
        for size in map(str, SIZES):
            here: list[dict[str, float]] = [row[size] for row in rows]  # type: ignore[misc]
            told[f"{name}, {size}"] = {
                "one group": _mean([r["kept"] == METHODS for r in here]),
                "mean size": _mean([r["kept"] for r in here]),
                "holds the best": _mean([r["holds"] for r in here]),
                "eliminated: mean size": _mean([r["raced"] for r in here]),
                "eliminated: one group": _mean([r["raced"] == METHODS for r in here]),
                "eliminated: holds the best": _mean([r["eliminated holds"] for r in here]),
            }
    return told


def _mean(values: object) -> float:
    listed = [float(v) for v in values]  # type: ignore[attr-defined]
    return sum(listed) / max(1, len(listed))


def _one(job: tuple[str, int]) -> dict[str, object]:
    torch.set_num_threads(1)
    return trial(*job)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    jobs = [(name, seed) for name in SCENARIOS for seed in range(given.repeats)]
    if given.workers == 1:
        trials = [_one(job) for job in jobs]
    else:
        with ProcessPoolExecutor(given.workers) as pool:
            trials = list(pool.map(_one, jobs, chunksize=8))
    result = {"repeats": given.repeats, **summary(trials)}
    for name, row in result.items():
        print(name, json.dumps(row))
    (given.out / "groups.json").write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
