"""Sections 4.1.b to 4.1.d: sampled rankings on images, text and tables, and other metrics than flipping.

    python -m replications.qge.sampled --data $VERIDICAL_DATA --out results [--only mnist cifar ...]

Needs the folders `mnist` (LeNet weights and the idx test set) and `cifar10` (JPEG test images, ResNet-20
weights) for the parts of that name; digits, breast cancer and reviews come with the package.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import os
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import veridical as vd
from replications.qge.networks import ResNet20
from veridical.tasks.networks import LeNet

KEPT = vd.qge.KeptFeatures(levels=20)
FAITHFULNESS = {
    "pixel-flipping (eq. 6)": (KEPT, False),
    "faithfulness correlation, shared subsets": ("faithfulness_correlation", False),
    "faithfulness correlation, own subsets": ("faithfulness_correlation", True),
    "faithfulness estimate": ("faithfulness_estimate", False),
    "monotonicity correlation, shared draws": ("monotonicity_correlation", False),
    "monotonicity correlation, own draws": ("monotonicity_correlation", True),
}
LOCALISATION = (
    "attribution_localisation",
    "top_k_intersection",
    "relevance_rank_accuracy",
    "relevance_mass_accuracy",
    "localisation_auc",
)


def confident(task: vd.Task, count: int) -> vd.Task:
    """The first inputs whose explained probability is at least .75."""
    own = task.probabilities(task.outputs).gather(1, task.targets[:, None])[:, 0]
    return task[(own >= 0.75).nonzero()[:count, 0]]


def mnist(folder: Path, count: int, **options: object) -> vd.Task:
    """LeNet on test images in random order, one feature a pixel."""
    raw = gzip.decompress((folder / "mnist" / "t10k-images-idx3-ubyte.gz").read_bytes())
    images = torch.tensor(np.frombuffer(raw, np.uint8, offset=16).reshape(-1, 1, 28, 28) / 255.0).float()
    raw = gzip.decompress((folder / "mnist" / "t10k-labels-idx1-ubyte.gz").read_bytes())
    labels = torch.tensor(np.frombuffer(raw, np.uint8, offset=8).astype(np.int64))
    weights = torch.load(folder / "mnist" / "mnist_lenet.pt", weights_only=True, map_location="cpu")
    names = {"fc1": "dense1", "fc2": "dense2", "fc3": "head"}
    net = LeNet()
    net.load_state_dict({_renamed(name, names): value for name, value in weights.items()})
    pick = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[: 4 * count]
    x = images[pick]
    masks = torch.stack([_box(image[0] > 0) for image in x])
    return confident(
        vd.Task(net.eval(), x, targets=labels[pick], masks=masks, fill=0.0, ids=pick, name="MNIST"), count
    )


def _renamed(name: str, names: dict[str, str]) -> str:
    layer, _, kind = name.rpartition(".")
    return f"{names.get(layer, layer)}.{kind}"


def _box(pixels: Tensor) -> Tensor:
    """The bounding box of an object."""
    down, across = pixels.any(1).nonzero()[:, 0], pixels.any(0).nonzero()[:, 0]
    box = torch.zeros_like(pixels)
    box[down.min() : down.max() + 1, across.min() : across.max() + 1] = True
    return box


def cifar(folder: Path, count: int, patch: int = 4) -> vd.Task:
    """ResNet-20 on test images in random order, one feature a patch of 4 x 4 pixels."""
    from PIL import Image

    classes = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    generator = torch.Generator().manual_seed(0)
    images, labels = [], []
    with tarfile.open(folder / "cifar10" / "cifar10_jpg_test10k.tar.gz") as archive:
        members = [m for m in archive.getmembers() if m.name.endswith(".jpg")]
        for at in sorted(torch.randperm(len(members), generator=generator)[: 4 * count].tolist()):
            file = archive.extractfile(members[at])
            assert file is not None
            picture = np.asarray(Image.open(io.BytesIO(file.read())).convert("RGB"))
            images.append(torch.tensor(picture / 255.0).float().movedim(-1, 0))
            labels.append(classes.index(members[at].name.split("/")[-2]))
    x = torch.stack(images)
    mean = torch.tensor([0.4914, 0.4822, 0.4465]).reshape(3, 1, 1)
    std = torch.tensor([0.2470, 0.2435, 0.2616]).reshape(3, 1, 1)
    net = ResNet20()
    saved = torch.load(folder / "cifar10" / "resnet20-12fca82f.th", weights_only=True, map_location="cpu")[
        "state_dict"
    ]
    net.load_state_dict({name.removeprefix("module."): value for name, value in saved.items()})
    shuffled = torch.randperm(len(x), generator=generator)
    x, targets = ((x - mean) / std)[shuffled], torch.tensor(labels)[shuffled]
    space = vd.Space.patches((3, 32, 32), patch) if patch > 1 else vd.Space.pixels((3, 32, 32))
    return confident(
        vd.Task(net.eval(), x, targets=targets, space=space, fill=0.0, name=f"CIFAR patch {patch}"), count
    )


def untrained(task: vd.Task) -> vd.Task:
    """The same task with the weights a fresh model of this kind has."""
    torch.manual_seed(0)
    net = LeNet()
    return vd.Task(net.eval(), task.inputs, targets=task.targets, fill=0.0, ids=task.ids, name="untrained")


def shipped(name: str, count: int) -> vd.Task:
    return confident(vd.tasks.load(name), count)


def row(what: str, task: vd.Task, metric: object, rankings: int, independent: bool = False) -> dict:
    start = time.time()
    # random explanations as the paper has them: uniform values in a random order
    found = vd.qge.sampled_study(
        task,
        metric,
        rankings=rankings,
        explanation=vd.explain("random", task),
        independent_draws=independent,
        progress=False,
    )
    out = {
        "what": what,
        "inputs": len(task),
        "rankings": rankings,
        "features": task.space.n_features,
        "tau": found.tau.mean(0).tolist(),
        "gain_tau": [found.gain_tau.nanmean().item(), found.gain_tau.std(correction=0).item()],
        "gain_rho": [found.gain_rho.nanmean().item(), found.gain_rho.std(correction=0).item()],
        "spread": found.spread.mean().item(),
        "evaluations": found.cost.forward,
        "seconds": round(time.time() - start, 1),
    }
    print(json.dumps(out), flush=True)
    return out


def parts(args: argparse.Namespace) -> dict[str, Callable[[], list[dict]]]:
    count, rankings = args.inputs, args.rankings

    def on_mnist() -> list[dict]:
        task = mnist(args.data, count)
        return [
            row("Table 1: MNIST, LeNet, pixels", task, KEPT, rankings),
            row("MNIST, untrained LeNet, pixels", untrained(task), KEPT, rankings),
        ]

    def localisation() -> list[dict]:
        task = mnist(args.data, count)
        return [row(f"Table 4: MNIST boxes, {name}", task, name, rankings) for name in LOCALISATION]

    def on_cifar() -> list[dict]:
        few = min(rankings, args.few)
        return [
            row(
                f"{'Table 1' if patch > 1 else 'Table 6'}: CIFAR, ResNet-20, {patch} x {patch}",
                task,
                KEPT,
                few,
            )
            for patch in (4, 1)
            for task in [cifar(args.data, count, patch)]
        ]

    def embedded() -> list[dict]:
        names = {"digits": "pixels", "breast_cancer": "30 columns", "reviews": "words"}
        return [row(f"{name}, {kind}", shipped(name, count), KEPT, rankings) for name, kind in names.items()]

    def faithfulness() -> list[dict]:
        task = shipped("digits", count)
        few = min(rankings, args.few)
        return [
            row(f"Table 3: digits, {name}", task, metric, few, independent)
            for name, (metric, independent) in FAITHFULNESS.items()
        ]

    return {
        "localisation": localisation,
        "mnist": on_mnist,
        "embedded": embedded,
        "faithfulness": faithfulness,
        "cifar": on_cifar,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("VERIDICAL_DATA"))
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--inputs", type=int, default=5)
    parser.add_argument("--rankings", type=int, default=1000)
    parser.add_argument("--few", type=int, default=200, help="rankings where a map costs many evaluations")
    parser.add_argument("--only", nargs="*", default=None)
    args = parser.parse_args()
    args.data = None if args.data is None else Path(args.data)
    args.out.mkdir(parents=True, exist_ok=True)
    results: list[dict] = []
    for name, run in parts(args).items():
        if args.only is None or name in args.only:
            results += run()
            (args.out / "sampled.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
