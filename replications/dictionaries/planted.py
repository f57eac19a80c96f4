"""Which dictionary metric can be trusted on planted features: many worlds, one process each.

`python -m replications.dictionaries.planted --out FOLDER --worlds 12 --processes 12`
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pandas as pd
import torch

KINDS = ("topk", "batchtopk", "relu")


def one(
    world: int, features: int, dimensions: int, steps: int, seeds: int, kind: str
) -> tuple[str, str, float]:
    """The table and the means of one world, as CSV."""
    torch.set_num_threads(1)
    import replications.dictionaries.effect  # noqa: F401  (joins the metrics)
    from veridical.dictionaries import BatchTopK, ReLU, Superposition, TopK, judge

    begin = time.perf_counter()
    planted = Superposition(features, dimensions, seed=world)
    shared = (features, steps, 256, 5e-3)
    recipe = {
        "topk": TopK(*shared, active=4),
        "batchtopk": BatchTopK(*shared, active=4),
        "relu": ReLU(*shared),
    }[kind]
    found = judge(planted, recipe, seeds=seeds, seed=world, progress=False)
    table = found.table.assign(world=world, kind=kind)
    means = found.means().reset_index(names="entry").assign(world=world, kind=kind)
    return table.to_json(), means.to_json(), time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--worlds", type=int, default=12)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--features", type=int, default=128)
    parser.add_argument("--dimensions", type=int, default=32)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--kinds", nargs="+", default=["topk"], choices=KINDS)
    parser.add_argument(
        "--device", help="taken for the shape of replications; planted features run on the CPU"
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes: that it runs")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.worlds, chosen.processes, chosen.features, chosen.dimensions = 1, 1, 24, 12
        chosen.steps, chosen.seeds = 10, 2
    chosen.out.mkdir(parents=True, exist_ok=True)
    sizes = (chosen.features, chosen.dimensions, chosen.steps, chosen.seeds)
    tables: list[pd.DataFrame] = []
    means: list[pd.DataFrame] = []
    seconds: list[float] = []
    with ProcessPoolExecutor(chosen.processes, get_context("spawn")) as pool:
        asked = [pool.submit(one, w, *sizes, kind) for kind in chosen.kinds for w in range(chosen.worlds)]
        for future in asked:
            table, mean, took = future.result()
            tables.append(pd.read_json(_file(table)))
            means.append(pd.read_json(_file(mean)))
            seconds.append(took)
            pd.concat(tables).to_csv(chosen.out / "planted_trust.csv", index=False)
            pd.concat(means).to_csv(chosen.out / "planted_means.csv", index=False)
    about = {"settings": {k: Path(str(v)).name for k, v in vars(chosen).items()}, "seconds": seconds}
    (chosen.out / "planted.json").write_text(json.dumps(about, indent=1))
    both = pd.concat(tables)
    print(both.groupby(["metric", "verdict"]).size().unstack(fill_value=0).to_string())


def _file(text: str):  # type: ignore[no-untyped-def]
    import io

    return io.StringIO(text)


if __name__ == "__main__":
    main()
