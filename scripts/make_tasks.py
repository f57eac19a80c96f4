"""Train the models that are shipped in the package and write their weights.

    python scripts/make_tasks.py [--out FOLDER] [NAME ...]

Without --out the weights of the package itself are replaced.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from veridical.core import files
from veridical.data import embedded


def make(name: str, folder: Path) -> float:
    """Train one model, write its weights, and say how good it is on its held-out rows."""
    model, quality = embedded.train(name)
    header = {"name": name, "quality": quality}
    path = files.save_tensors(
        folder / f"{name}.safetensors", embedded.WEIGHTS_KIND, model.state_dict(), header
    )
    path.chmod(0o644)  # a temporary file is private, a part of a package is not
    return quality


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(embedded.SHIPPED)}")
    parser.add_argument("--out", type=Path, default=embedded.WEIGHTS, help="folder for the weights")
    chosen = parser.parse_args(arguments)
    for name in chosen.names or list(embedded.SHIPPED):
        sys.stdout.write(f"{name}: {make(name, chosen.out):.4f}\n")


if __name__ == "__main__":
    main()
