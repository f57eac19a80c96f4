"""Sections 4.1.b to 4.1.d: sampled rankings on images, text and tables, and other metrics than flipping.

    python -m replications.qge.sampled --data $VERIDICAL_DATA --out results [--only mnist cifar ...]

Needs the folders `mnist` (idx test set, npz train set, LeNet weights), `cifar10` (JPEG images, ResNet-20
weights), `trec` and `sms_spam` for the parts of those names, and for `imagenet` what
`python -m replications.gef.efficientnet --prepare FOLDER` writes (`--photos FOLDER`); the others come with
packages. A line of sampled.jsonl is written for each row as soon as it is there.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import veridical as vd
from replications.qge import data, networks
from replications.qge.models import VARIANTS, Recipe, Variant, accuracy, chosen_inputs, fitted, perceptron
from replications.qge.study import paper_study

KEPT = vd.qge.KeptFeatures(levels=20)
FAITHFULNESS = {
    "pixel-flipping (eq. 6)": (KEPT, False),
    "faithfulness correlation, shared subsets": ("faithfulness_correlation", False),
    "faithfulness correlation, own subsets": ("faithfulness_correlation", True),
    "faithfulness estimate": ("faithfulness_estimate", False),
    "monotonicity correlation, shared draws": ("monotonicity_correlation", False),
    "monotonicity correlation, own draws": ("monotonicity_correlation", True),
}
# rankings on photos, fewer where every one costs many evaluations of a larger network
ON_PHOTOS = {
    "faithfulness correlation, shared subsets": 1000,
    "faithfulness estimate": 1000,
    "faithfulness correlation, own subsets": 1000,
    "monotonicity correlation, shared draws": 100,
}
LOCALISATION = (
    "attribution_localisation",
    "top_k_intersection",
    "relevance_rank_accuracy",
    "relevance_mass_accuracy",
    "localisation_auc",
)
IN_ORDER = "values 1..D"


def confident(task: vd.Task, count: int) -> vd.Task:
    """The first inputs whose explained probability is at least .75."""
    own = task.probabilities(task.outputs).gather(1, task.targets[:, None])[:, 0]
    return task[(own >= 0.75).nonzero()[:count, 0]]


def boxes(images: Tensor) -> Tensor:
    """The bounding box of what is not black in each image (N, 1, H, W)."""
    masks = torch.zeros_like(images[:, 0], dtype=torch.bool)
    for mask, image in zip(masks, images[:, 0] > 0, strict=True):
        down, across = image.any(1).nonzero()[:, 0], image.any(0).nonzero()[:, 0]
        mask[down.min() : down.max() + 1, across.min() : across.max() + 1] = True
    return masks


def space_of(shape: torch.Size, grain: int) -> vd.Space | None:
    """Squares of pixels, pixels, or (None) columns."""
    if len(shape) == 1:
        return None
    return vd.Space.patches(tuple(shape), grain) if grain > 1 else vd.Space.pixels(tuple(shape))


class Study:
    """Asks for rows, one after the other, and writes each of them."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.file = args.out / "sampled.jsonl"

    def row(
        self,
        facts: dict[str, Any],
        task: vd.Task,
        metric: Any = KEPT,
        independent: bool = False,
        plain: bool = False,
        rankings: int | None = None,
    ) -> None:
        """One line: gains over QRAND_1, their spread over inputs and the 95% interval of their mean."""
        start = time.perf_counter()
        # random explanations as the paper has them: uniform values in a random order
        found = paper_study(
            task,
            metric,
            rankings=rankings or self.args.rankings,
            draws=10,
            explanation=None if plain else vd.explain("random", task),
            independent_draws=independent,
        )
        out = {
            **facts,
            "inputs": len(task),
            "rankings": found.rankings,
            "features": task.space.n_features,
            "gain_tau": spread(found.gain_tau),
            "gain_rho": spread(found.gain_rho),
            "sigma": found.spread.mean().item(),
            "tau": found.tau.nanmean(0).tolist(),
            "rho": found.rho.nanmean(0).tolist(),
            "evaluations": found.cost.forward,
            "seconds": round(time.perf_counter() - start, 1),
            "device": str(task.device),
        }
        print(json.dumps({k: v for k, v in out.items() if k not in ("tau", "rho")}), flush=True)
        with self.file.open("a") as file:
            file.write(json.dumps({**out, "study": found.to_json()}) + "\n")

    def wanted(self, model: str) -> bool:
        """Whether a row of this model was asked for."""
        return self.args.models is None or model in self.args.models

    def models(
        self,
        table: data.Table,
        name: str,
        recipe: Recipe,
        variants: tuple[Variant, ...] = VARIANTS,
        also_stop_at: float | None = None,
    ) -> None:
        """A row for each variant of one network on one set."""
        full, trained_rows = 1.0, torch.arange(0)
        wanted = [(variant, "") for variant in variants]
        wanted += [("trained", f"stopped at {also_stop_at}")] if also_stop_at else []
        for variant, how in wanted:
            stop_at = {"undertrained": 0.7 * full}.get(variant, also_stop_at if how else None)
            net = fitted(table, variant, recipe, stop_at=stop_at)
            rows = chosen_inputs(net, table, self.args.inputs)
            if variant == "trained" and not how:
                full, trained_rows = accuracy(net, table), rows
            if not self.wanted(variant):
                continue
            # a model without confidence is asked about the inputs of the trained one
            own = len(rows) == self.args.inputs
            rows = rows if own else trained_rows
            if not len(rows):
                print(f"{table.name}, {name}, {variant}: no input of probability .75", flush=True)
                continue
            shape = table.train.shape[1:]
            task = vd.Task(
                net,
                table.test[rows.to(table.test.device)],
                targets=table.test_labels[rows.to(table.test.device)],
                train=table.train[:2000],
                fill="mean" if variant == "ood-mean" else 0.0,
                space=space_of(shape, recipe.grain),
                ids=rows.to(table.test.device),
                name=table.name,
            )
            facts = {
                "set": table.name,
                "network": name,
                "model": f"{variant} {how}".strip(),
                "grain": recipe.grain if len(shape) > 1 else None,
                "accuracy": accuracy(net, table),
                "inputs of": "this model" if own else "the trained model",
            }
            self.row(facts, task)


def spread(values: Tensor) -> dict[str, float]:
    """Mean, standard deviation and 95% interval of the mean over inputs (Student's t)."""
    from scipy.stats import t

    kept = values[~values.isnan()]
    error = kept.std().item() / len(kept) ** 0.5 if len(kept) > 1 else float("nan")
    half = float(t.ppf(0.975, max(1, len(kept) - 1))) * error
    mean = kept.mean().item()
    return {"mean": mean, "sd": kept.std(correction=0).item(), "low": mean - half, "high": mean + half}


def parts(args: argparse.Namespace) -> dict[str, Callable[[], None]]:
    study = Study(args)

    def here(table: data.Table) -> data.Table:
        return table.first(args.rows).to(args.device)

    def mnist() -> None:
        table = here(data.mnist(args.data))
        study.models(table, "MLP", networks.digits_perceptron(args.epochs or 10), also_stop_at=0.93)
        study.models(table, "LeNet", networks.lenet(args.data, args.epochs or 10), also_stop_at=0.93)

    def cifar() -> None:
        table = here(data.cifar(args.data))
        for grain in (4, 1):
            study.models(table, "ResNet-20", networks.resnet20(args.data, grain, args.epochs or 20))

    def text() -> None:
        for table in (here(data.trec(args.data)), here(data.sms(args.data))):
            columns, classes = table.train.shape[1], table.classes
            study.models(
                table, "MLP over words", Recipe(_mlp(columns, classes, 128), args.epochs or 10, 2e-3)
            )

    def tables() -> None:
        table = here(data.breast_cancer())
        study.models(table, "MLP", Recipe(_mlp(30, 2, 32), args.epochs or 100))

    def embedded() -> None:
        for name in ("digits", "breast_cancer", "reviews"):
            task = confident(vd.tasks.load(name), args.inputs).to(args.device)
            study.row({"set": f"{name} (embedded)", "network": "shipped", "model": "trained"}, task)

    def imagenet() -> None:
        for model, grain, task in _photos(args):
            if not study.wanted(model):
                continue
            facts = {"set": "ImageNet", "network": "EfficientNet-lite0", "model": model, "grain": grain}
            study.row(facts, task)

    def localisation() -> None:
        table = data.mnist(args.data)
        net = networks.given_lenet(args.data).eval()
        rows = chosen_inputs(net, table, args.inputs)
        x = table.test[rows]
        task = vd.Task(net, x, targets=table.test_labels[rows], masks=boxes(x), fill=0.0, ids=rows)
        for name in LOCALISATION:
            for plain in (False, True):
                values = IN_ORDER if plain else "uniform values"
                facts = {"set": "MNIST boxes", "network": "none asked", "metric": name, "values": values}
                study.row(facts, task.to(args.device), name, plain=plain)

    def faithfulness() -> None:
        digits = confident(vd.tasks.load("digits"), args.inputs).to(args.device)
        for name, (metric, independent) in FAITHFULNESS.items():
            facts = {"set": "digits (embedded)", "network": "shipped", "metric": name}
            study.row(facts, digits, metric, independent)

    def photos() -> None:
        _, _, patches = next(_photos(args))
        for name, rankings in ON_PHOTOS.items():
            facts = {"set": "ImageNet", "network": "EfficientNet-lite0", "grain": 32, "metric": name}
            metric, independent = FAITHFULNESS[name]
            study.row(facts, patches, metric, independent, rankings=min(rankings, args.rankings))

    return {
        "mnist": mnist,
        "text": text,
        "tables": tables,
        "embedded": embedded,
        "cifar": cifar,
        "imagenet": imagenet,
        "photos": photos,
        "localisation": localisation,
        "faithfulness": faithfulness,
    }


def _mlp(columns: int, classes: int, width: int) -> Callable[[int], nn.Module]:
    return lambda seed: perceptron(columns, classes, width, seed)


def _photos(args: argparse.Namespace) -> Iterator[tuple[str, int, vd.Task]]:
    """EfficientNet-lite0, trained and not, on photos it is sure of: 32 x 32 squares, then pixels."""
    from replications.gef.efficientnet import FILE, photos_task
    from veridical.data.embedded import EfficientNetLite0

    every = photos_task(args.photos / FILE, 10 * args.inputs, args.device)
    shape = tuple(every.inputs.shape[1:])
    assert every.labels is not None
    torch.manual_seed(0)
    fresh = _normalised(EfficientNetLite0(shape[-1]).to(args.device), every.inputs[:50])
    sure = confident(vd.Task(every.model, every.inputs, targets=every.labels), args.inputs)
    for grain in (32, 1):
        for model, net in (("trained", every.model), ("untrained", fresh)):
            space = space_of(torch.Size(shape), grain)
            yield (
                model,
                grain,
                vd.Task(net, sure.inputs, targets=sure.targets, fill=0.0, space=space, ids=sure.ids),
            )


def _normalised(net: nn.Module, images: Tensor) -> nn.Module:
    """An untrained network with the batch statistics of these images: with none it answers all alike."""
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = None  # a plain average over what it is shown
    with torch.no_grad():
        net.train()(images)
    return net.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("VERIDICAL_DATA"))
    parser.add_argument("--photos", type=Path, help="folder with the prepared photos and weights")
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--inputs", type=int, default=5)
    parser.add_argument("--rankings", type=int, default=1000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", nargs="*", default=None)
    parser.add_argument("--models", nargs="*", choices=VARIANTS, default=None)
    parser.add_argument("--epochs", type=int, help="fewer of them for a trial")
    parser.add_argument("--rows", type=int, help="fewer rows of each set for a trial")
    args = parser.parse_args()
    args.data = None if args.data is None else Path(args.data)
    args.out.mkdir(parents=True, exist_ok=True)
    for name, run in parts(args).items():
        if args.only is None or name in args.only:
            if name in ("imagenet", "photos") and args.photos is None:
                print(f"{name} is left out: it needs --photos")
                continue
            run()


if __name__ == "__main__":
    main()
