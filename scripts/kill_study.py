"""Kill the processes of a study with SIGKILL, let it finish, and compare it with an undisturbed run.

    python scripts/kill_study.py                 # 24 kills on processes, 12 on a Ray cluster of two nodes
    python scripts/kill_study.py --only workers --kills 8

Prints a table; exit status 1 says that a file was lost, computed twice, or came out otherwise.
"""

import argparse
import logging
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from tests.study import killing  # noqa: E402 (the path must be set first)

STUDY = {
    "name": "killed",
    "tasks": [{"name": "known/linear", "samples": 40}, {"name": "known/planted_patch", "samples": 8}],
    "explainers": ["input_x_gradient", {"name": "integrated_gradients", "settings": {"steps": 8}}, "random"],
    "metrics": [
        "sparseness",
        "pixel_flipping",
        {"name": "faithfulness_correlation", "settings": {"runs": 16}},
        "max_sensitivity",
        {"name": "rfid_plus", "settings": {"draws": 4}},
    ],
    "seeds": [0, 1],
    "shards": 4,
    "plan": {"rows": 64, "threads": 1},
}


def main() -> int:
    """Exit status 1 says that something was lost or differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kills", type=int, default=8, help="of each row on processes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=["one", "two", "workers", "ray"])
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    # three workers, for they are what dies most; the driver twice
    kinds = ["worker", "worker", "worker", "driver", *killing.PROCESSES]
    rows = {
        "one": lambda at: killing.kill_often(STUDY, at, given.kills, "in-process", given.seed),
        "two": lambda at: killing.kill_often(STUDY, at, given.kills, "processes", given.seed),
        "workers": lambda at: killing.kill_workers(STUDY, at, given.kills, given.seed),
        "ray": lambda at: killing.kill_ray(STUDY, at, kinds, given.seed),
    }
    titles = {
        "one": "one process: the runner",
        "two": "two workers: the runner",
        "workers": "two workers: a worker",
        "ray": "Ray, two nodes",
    }
    good = True
    print("| killed | kills | the run | files byte-equal | computed twice |\n|---|---|---|---|---|")
    for name, row in rows.items():
        if given.only and name not in given.only:
            continue
        with tempfile.TemporaryDirectory() as folder:
            report = row(Path(folder))
        good &= report.whole and not any("nothing" in end or end == "hung" for _, end in report.strikes)
        equal = f"{report.files - len(report.different)} of {report.files}"
        for (kind, end), times in Counter(report.strikes).items():
            title = f"{titles[name]}: {kind}" if name == "ray" else titles[name]
            print(f"| {title} | {times} | {end} | {equal} | {len(report.recomputed)} |", flush=True)
        print(f"{name}: {report}", file=sys.stderr, flush=True)
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
