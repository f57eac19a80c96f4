"""Seconds to import veridical beside those to import torch, each in a fresh process.

python -m benchmarks.import_time [--rounds 5]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from typing import Any

_SCRIPT = "import time; t = time.process_time(); import {name}; print(time.process_time() - t)"


def one(name: str) -> float:
    """Processor seconds that one fresh process takes to import a package."""
    answer = subprocess.run(
        [sys.executable, "-c", _SCRIPT.format(name=name)], capture_output=True, check=True
    )
    return float(answer.stdout)


def measure(rounds: int = 5) -> dict[str, Any]:
    """The medians and their ratio; the two take turns, and a first one fills the disk's cache."""
    one("veridical")
    pairs = [(one("torch"), one("veridical")) for _ in range(rounds)]
    alone, ours = (statistics.median(column) for column in zip(*pairs, strict=True))
    return {"import torch": alone, "import veridical": ours, "ratio": round(ours / alone, 3), "aim": 1.2}


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    for name, value in measure(parser.parse_args().rounds).items():
        print(f"{name}: {value:.3f}")


if __name__ == "__main__":
    main()
