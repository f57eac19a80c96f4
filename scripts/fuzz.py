"""Many random calls and changed files: what breaks the promise of an answer, a flag or a VeridicalError.

Each shard is a seed. Some calls are made again under another plan, and some in another process, backwards and
with other hashes of texts: the numbers agree, or it is said. Nightly:

python scripts/fuzz.py --calls 1000 --shards 100 --workers 16 --mutations 20000 --seed 7 --out fuzz.json

After `--minutes` no more shards begin; what was done is told and kept.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from tests.fuzz import calls, mutations  # noqa: E402

SECOND = """
import json, sys
from tests.fuzz.calls import run
print(json.dumps(run(*map(int, sys.argv[1:])).digests))
"""


def again(count: int, seed: int) -> dict[str, str]:
    """What another process answers to one call in three, the last one first."""
    paths = os.pathsep.join(sys.path[:2])
    env = {**os.environ, "PYTHONHASHSEED": str(seed % 1000 + 1), "PYTHONPATH": paths}
    command = [sys.executable, "-W", "ignore", "-c", SECOND, str(count), str(seed), "-3"]
    made: dict[str, str] = json.loads(
        subprocess.run(command, env=env, capture_output=True, check=True).stdout
    )
    return made


def shard(count: int, seed: int, until: float) -> dict[str, Any] | None:
    """One seed: what became of its calls, and which digests another process does not find; None if late."""
    if time.time() > until:
        return None
    torch.set_num_threads(1)
    began = time.process_time()
    tally = calls.run(count, seed)
    other = again(count, seed)
    unlike = [number for number, digest in other.items() if tally.digests[number] != digest]
    wrong = tally.wrong + [f"{seed}/{number} has another answer in another process" for number in unlike]
    outcomes = {**tally.outcomes, "in another process": len(other), "unlike there": len(unlike)}
    seconds = round(time.process_time() - began)
    return {"seed": seed, "calls": count, "outcomes": outcomes, "wrong": wrong, "seconds": seconds}


def commit() -> str:
    """The commit of the source, where git knows it."""
    asked = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return asked.stdout.strip()


def main() -> int:
    """Print what became of the calls, and each kind of failure with one example."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=10_000, help="calls of a shard")
    parser.add_argument("--shards", type=int, default=1, help="how many, each with the next seed")
    parser.add_argument("--mutations", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--out", type=Path, help="a JSON file of all shards")
    parser.add_argument("--workers", type=int, default=1, help="shards at a time, each in a process")
    parser.add_argument("--minutes", type=float, default=1e6, help="when no more shards begin")
    given = parser.parse_args()
    until, shards = time.time() + 60 * given.minutes, []
    seeds = range(given.seed, given.seed + given.shards)
    with ProcessPoolExecutor(given.workers, get_context("spawn")) as pool:
        for ended in as_completed([pool.submit(shard, given.calls, seed, until) for seed in seeds]):
            if (found := ended.result()) is None:
                continue
            shards.append(found)
            print(*(f"{name} {value}" for name, value in found.items() if name != "wrong"), flush=True)
            if given.out:
                given.out.write_text(json.dumps({"commit": commit(), "shards": shards}, indent=1))
    total: Counter[str] = Counter()
    for each in shards:
        total.update(each["outcomes"])
    print(f"{sum(each['calls'] for each in shards):,} calls in {len(shards)} shards: {dict(total)}")
    wrong = [line for each in shards for line in each["wrong"]]
    with tempfile.TemporaryDirectory() as where:
        changed = mutations.run(given.mutations, given.seed, Path(where))
    print(f"{given.mutations:,} changed files: {dict(changed.outcomes)}")
    wrong += changed.wrong
    kinds = Counter(re.sub(r"^\S+ ", "", line)[:90] for line in wrong)
    for kind, count in kinds.most_common():
        print(f"{count} x {next(line for line in wrong if kind in line)}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
