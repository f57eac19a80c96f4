"""Kill a study with SIGKILL at random moments, let it finish, and compare it with an undisturbed run.

python scripts/kill_study.py --kills 20
"""

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from tests.study.killing import kill_often  # noqa: E402 (the path must be set first)

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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--executor", default="processes")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = kill_often(STUDY, Path(folder), given.kills, given.executor, given.seed)
    print(report)
    return int(bool(report.different or report.recomputed))


if __name__ == "__main__":
    sys.exit(main())
