"""OpenXAI's published Adult models beside a published table of their prediction gaps.

    VERIDICAL_DATA=... python -m benchmarks.openxai FOLDER

FOLDER holds `LR/adult_*.pt` and `ANN/adult_*.pt` of openxai/ML_Models/Saved_Models; the table is
PLOTS/openxai_aucs.csv of KaiRawal/AXE-OpenXAI-Submodule. PGI is the mean change of the probability when the k
features named first are perturbed, PGU when the others are: numbers by N(0, 0.5), truth values turned with
probability 0.3; the area over k = 1, 3, ..., 11 as a share of 13.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from sklearn.metrics import auc
from torch import Tensor, nn

import veridical as vd
from replications.gef import data

PUBLISHED = {
    ("LR", "PGI"): {"random": 0.231, "gradient": 0.060, "smoothgrad": 0.060, "integrated_gradients": 0.267},
    ("LR", "PGU"): {"random": 0.205, "gradient": 0.322, "smoothgrad": 0.322, "integrated_gradients": 0.147},
    ("ANN", "PGI"): {"random": 0.221, "gradient": 0.085, "smoothgrad": 0.085, "integrated_gradients": 0.246},
    ("ANN", "PGU"): {"random": 0.201, "gradient": 0.289, "smoothgrad": 0.289, "integrated_gradients": 0.145},
}
COLUMNS, NUMBERS, DRAWS = 13, 6, 100


def model(folder: Path, kind: str) -> nn.Module:
    """The published weights in layers of our own."""
    (file,) = folder.glob(f"{kind}/adult_*.pt")
    held = list(torch.load(file, weights_only=True).values())
    layers: list[nn.Module] = []
    for weight, bias in zip(held[::2], held[1::2], strict=True):
        layer = nn.Linear(*weight.T.shape)
        layer.weight.data, layer.bias.data = weight, bias
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1]).eval()


@torch.no_grad()
def gap(net: nn.Module, x: Tensor, perturbed: Tensor, moved: Tensor) -> float:
    """The mean change of the first probability when these features (N, V) are perturbed."""
    rows = torch.where(moved[:, None], perturbed, x[:, None])
    return float((net(rows).softmax(-1)[..., 0] - net(x).softmax(-1)[:, :1]).abs().mean())


def main() -> None:
    """Print both gaps of each map beside the table."""
    base, random = data.adult(1000), torch.Generator().manual_seed(1)
    x = base.inputs
    shape = (len(x), DRAWS, COLUMNS)
    turned = (x[:, None] - (torch.rand(shape, generator=random) < 0.3).float()).abs()
    noisy = x[:, None] + 0.5 * torch.randn(shape, generator=random)
    perturbed = torch.where(torch.arange(COLUMNS) < NUMBERS, noisy, turned)
    for kind in ("LR", "ANN"):
        net = model(Path(sys.argv[1]), kind)
        task = vd.Task(net, x, labels=base.labels)
        print(f"{kind}: accuracy {float((task.predictions == base.labels).double().mean()):.3f}")
        for name in PUBLISHED[kind, "PGI"]:
            order = vd.explain(name, task).values.abs().argsort(-1, descending=True).argsort(-1)
            sizes = range(1, COLUMNS, 2)
            found = [
                auc([k / COLUMNS for k in sizes], [gap(net, x, perturbed, (order < k) == top) for k in sizes])
                for top in (True, False)
            ]
            said = [f"{what} {PUBLISHED[kind, what][name]:.3f}" for what in ("PGI", "PGU")]
            print(f"  {name:21} PGI {found[0]:.3f}, PGU {found[1]:.3f}; the table has {', '.join(said)}")


if __name__ == "__main__":
    main()
