"""Does the noise path repeat? Twenty seeds on tasks that come with the package, both rules.

    python -m replications.gef.path --out replications/gef/results [--seeds 20] [--samples 44] [--only wine]

Tasks that are in the file already are left as they are, so a run that was ended goes on.
For each task: sigma_max under every seed, the share of pairs of seeds whose 95% intervals of q (Fast-GEF of
the gradient) are disjoint, and the agreement of deep copies at sigma_max, which uses nothing of the search.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from itertools import combinations
from pathlib import Path
from typing import Any

import torch

import veridical as vd
from veridical.core.key import Key
from veridical.gef.noise_path import agreement, calibration_rows

TASKS = (
    "breast_cancer",
    "breast_cancer_logistic",
    "wine",
    "wine_logistic",
    "diabetes",
    "digits",
    "mnist5k",
    "basic_motions_cnn",
    "japanese_vowels_cnn",
    "reviews",
    "known/linear",
    "known/tiers",
    "a head unit of digits",
    "a relu2 unit of digits",
)
COPIES = 200


def load(name: str) -> vd.Task:
    """A task of the package, or a unit of the digits network."""
    if not name.endswith("unit of digits"):
        return vd.tasks.load(name)
    return vd.gef.at_neuron(vd.tasks.load("digits"), name.split()[1], 0)


def disjoint(intervals: list[tuple[float, float]]) -> float:
    """The share of pairs of intervals that have no number in common."""
    pairs = list(combinations(intervals, 2))
    return sum(a[1] < b[0] or b[1] < a[0] for a, b in pairs) / len(pairs)


def left_in_copies(task: vd.Task, sigma: float) -> dict[str, Any]:
    """The agreement of deep copies of the model, noise drawn by torch's own generator."""
    rows = calibration_rows(task)
    generator = torch.Generator().manual_seed(7)
    kept = []
    for _ in range(COPIES):
        noisy = copy.deepcopy(rows.model)
        with torch.no_grad():
            for value in noisy.parameters():
                value.mul_(1 + sigma * torch.randn(value.shape, generator=generator).to(value))
        kept.append(agreement(rows, rows.with_module(noisy).predictor.outputs(rows.inputs, rows.side)))
    found = torch.tensor(kept)
    low, high = found.quantile(torch.tensor([0.025, 0.975])).tolist()
    return {"mean": float(found.mean()), "error": float(found.std()) / COPIES**0.5, "95%": [low, high]}


def study(name: str, seeds: int, samples: int) -> dict[str, Any]:
    """What twenty seeds give on one task."""
    task, start = load(name)[:samples], time.process_time()
    out: dict[str, Any] = {}
    for rule in ("fitted", "published"):
        scores = [vd.score(vd.gef.FastGEF(path=rule), task, "gradient", seed=seed) for seed in range(seeds)]
        ends = [own.provenance["path"]["sigma_max"] for own in scores]
        intervals = [own.ci() for own in scores]
        out[rule] = {
            "sigma_max": ends,
            "largest over smallest": max(ends) / min(ends),
            "q": [own.mean(skip_nan=True) for own in scores],
            "intervals": intervals,
            "disjoint pairs": disjoint(intervals),
            "rows of a search": sum(own.provenance["path"]["rows"] for own in scores) / seeds,
        }
        if rule == "fitted":
            out[rule]["disjoint pairs of sigma_max"] = disjoint(
                [own.provenance["path"]["interval"] for own in scores]
            )
    fixed = vd.gef.FastGEF(path=vd.gef.FastGEF().noise_path(task, Key(0)).levels)
    scores = [vd.score(fixed, task, "gradient", seed=seed) for seed in range(seeds)]
    out["one path for all"] = {
        "q": [own.mean(skip_nan=True) for own in scores],
        "disjoint pairs": disjoint([own.ci() for own in scores]),
    }
    middle = sorted(out["fitted"]["sigma_max"])[seeds // 2]
    out["left in deep copies at the median sigma_max"] = left_in_copies(task, middle)
    out["reason"] = vd.gef.FastGEF().noise_path(task, Key(0)).reason
    out["seconds"] = round(time.process_time() - start, 1)
    return out


def rounded(value: Any) -> Any:
    """The same plain data with four digits behind the point."""
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    return round(value, 4) if isinstance(value, float) else value


def main() -> None:
    """Write one JSON, anew as soon as each task is done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--samples", type=int, default=44)
    parser.add_argument("--only", nargs="*", default=TASKS)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    file, found = given.out / "path.json", {}
    if file.exists():
        kept = json.loads(file.read_text())
        if (kept["seeds"], kept["samples"]) == (given.seeds, given.samples):
            found = kept["tasks"]
    for name in given.only:
        if name in found:
            continue
        own = found[name] = study(name, given.seeds, given.samples)
        ratios = {rule: round(own[rule]["largest over smallest"], 2) for rule in ("fitted", "published")}
        pairs = {rule: round(own[rule]["disjoint pairs"], 3) for rule in ("fitted", "published")}
        print(name, "largest over smallest", ratios, "disjoint", pairs, own["seconds"], "s", flush=True)
        lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(rounded(own))}" for name, own in found.items())
        text = f'{{"seeds": {given.seeds}, "samples": {given.samples}, "tasks": {{\n{lines}\n}}}}\n'
        file.write_text(text)


if __name__ == "__main__":
    main()
