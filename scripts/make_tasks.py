"""Train the models that are shipped in the package and write their weights.

    python scripts/make_tasks.py [--out FOLDER] [NAME ...]

Without --out the weights of the package itself are replaced.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from veridical.core import files
from veridical.data import embedded
from veridical.data.training import Recipe, fit

RECIPES = {
    "digits": Recipe(30, rate=3e-3, decay=1e-3),
    "breast_cancer": Recipe(40, rate=3e-3, decay=1e-2),
    "breast_cancer_logistic": Recipe(60, rate=1e-2, decay=1e-1),
    "wine": Recipe(60, rate=3e-3, decay=1e-2),
    "wine_logistic": Recipe(80, rate=1e-2, decay=1e-1),
    "diabetes": Recipe(40, rate=3e-3, decay=1e-1, loss="squared"),
    "reviews": Recipe(20, rate=5e-3, decay=1e-2),
}


def quality(outputs: torch.Tensor, labels: torch.Tensor) -> float:
    """Accuracy of class outputs; R^2 of a single one."""
    if outputs.shape[1] > 1:
        return float((outputs.argmax(1) == labels).double().mean())
    truth = labels.double()
    return float(1 - (outputs[:, 0] - truth).square().sum() / (truth - truth.mean()).square().sum())


def make(name: str, folder: Path) -> float:
    """Train one model, write its weights, and say how good it is on its held-out rows."""
    network, read = embedded.SHIPPED[name]
    data = read()
    model = fit(network(), *data.training, RECIPES[name], name)
    with torch.no_grad():
        reached = quality(model(data.rows[data.test]), data.labels[data.test])
    header = {"name": name, "quality": reached}
    path = files.save_tensors(
        folder / f"{name}.safetensors", embedded.WEIGHTS_KIND, model.state_dict(), header
    )
    path.chmod(0o644)  # a temporary file is private, a part of a package is not
    return reached


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(embedded.SHIPPED)}")
    parser.add_argument("--out", type=Path, default=embedded.WEIGHTS, help="folder for the weights")
    chosen = parser.parse_args(arguments)
    for name in chosen.names or list(embedded.SHIPPED):
        sys.stdout.write(f"{name}: {make(name, chosen.out):.4f}\n")


if __name__ == "__main__":
    main()
