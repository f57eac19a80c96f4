"""Write tests/data/golden_scores.json anew, after a metric or explainer changed its scores and its version.

python scripts/renew_golden_scores.py
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from tests.study.golden import FILE, write  # noqa: E402 (the path must be set first)

if __name__ == "__main__":
    for name in write():
        print(f"renewed {name}")
    print(f"written to {FILE.relative_to(ROOT)}")
