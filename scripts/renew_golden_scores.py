"""Renew tests/data/golden_scores.json after a metric or explainer changed its scores and its version.

python scripts/renew_golden_scores.py         what is new or changed
python scripts/renew_golden_scores.py --new   only what has no golden scores yet (`make record` does this)
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from tests.study.golden import FILE, write  # noqa: E402 (the path must be set first)

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--new", action="store_true", help="leave alone what has golden scores")
    for name in write(new_only=parser.parse_args().new):
        print(f"renewed {name}")
    print(f"written to {FILE.relative_to(ROOT)}")
