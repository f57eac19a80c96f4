"""Many random calls and changed files: what breaks the promise of an answer, a flag or a VeridicalError.

python scripts/fuzz.py --calls 100000 --mutations 20000 --seed 7
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from tests.fuzz import calls, mutations  # noqa: E402


def main() -> int:
    """Print what became of the calls, and each kind of failure with one example."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--mutations", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given = parser.parse_args()
    print(f"seed {given.seed}")
    began = time.process_time()
    wrong = []
    found = calls.run(given.calls, given.seed)
    print(f"{given.calls:,} calls: {dict(found.outcomes)}; {time.process_time() - began:.0f} s of CPU")
    wrong += found.wrong
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
