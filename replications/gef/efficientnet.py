"""Exact GEF on EfficientNet-lite0 at 224 px and 250 ImageNet photos, which the paper left out for its cost.

    python -m replications.gef.efficientnet --prepare FOLDER      # once: photos and weights into one file
    python -m replications.gef.efficientnet --data FOLDER --device cuda --out results [--minutes 9]

The first needs the photos ($VERIDICAL_DATA/imagenet_samples), Pillow and the package of the weights; the
second only torch and numpy. Every cell is written as soon as it is there.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import veridical as vd
from replications.gef.run import metric_of
from veridical.data.embedded import DEVIATION, MEAN, SIZE, EfficientNetLite0
from veridical.explainers import as_explainer

FILE = "efficientnet.npz"
PAPER = {
    "SAL": 0.71,
    "GRAD": 0.71,
    "IXG": 0.64,
    "INTG": 0.78,
    "GBP": 0.85,
    "LRP-z+": 0.91,
    "RAN": 0.0,
    "SMG": 0.63,
}
"""Fast-GEF on ImageNet with a ResNet-18 (Table A.5): another network, so a neighbour and no target."""
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "GRAD": ("gradient", {}),
    "SAL": ("saliency", {}),
    "IXG": ("input_x_gradient", {}),
    "RAN": ("random", {}),
    "GBP": ("guided_backprop", {}),
    "LRP-z+": ("lrp_z_plus", {}),
    "INTG": ("integrated_gradients", {"steps": 10}),
    "SMG": ("smoothgrad", {"samples": 10}),
}
EXACT = ("GRAD", "SAL", "IXG", "RAN", "INTG")


def prepare(folder: Path) -> Path:
    """Write the photos as bytes and the weights as half floats (vectors stay whole) into one file."""
    from veridical.data.embedded import efficientnet
    from veridical.data.images import read_image

    given = os.environ.get("VERIDICAL_DATA")
    if not given:
        raise SystemExit("set VERIDICAL_DATA to the folder that holds imagenet_samples/")
    here = Path(given) / "imagenet_samples"
    classes = {
        row["file"]: int(row["class_index"])
        for row in csv.DictReader(io.StringIO((here / "labels.csv").read_text()))
    }
    photos, labels = [], []
    with tempfile.TemporaryDirectory() as unpacked, tarfile.open(here / "images250.tar") as archive:
        archive.extractall(unpacked, filter="data")
        for name, label in sorted(classes.items()):
            picture = read_image(Path(unpacked) / name, SIZE)
            photos.append((picture * 255).round().to(torch.uint8).numpy())
            labels.append(label)
    weights = {
        f"weights/{name}": value.numpy().astype(np.float16 if value.dim() > 1 else value.numpy().dtype)
        for name, value in efficientnet().state_dict().items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE
    arrays: dict[str, Any] = {"photos": np.stack(photos), "labels": np.array(labels), **weights}
    np.savez_compressed(path, **arrays)
    return path


def photos_task(path: Path, samples: int, device: str | None) -> vd.Task:
    """The network on the prepared photos; every pixel is a feature."""
    stored = np.load(path, allow_pickle=False)
    model = EfficientNetLite0(SIZE)
    weights = {
        name.removeprefix("weights/"): torch.from_numpy(stored[name]) for name in stored.files if "/" in name
    }
    model.load_state_dict(
        {name: value.float() if value.is_floating_point() else value for name, value in weights.items()}
    )
    rows = torch.from_numpy(stored["photos"][:samples]).float() / 255
    x = (rows - MEAN) / DEVIATION
    labels = torch.from_numpy(stored["labels"][:samples])
    space = vd.Space.pixels(x.shape[1:])  # the README's numbers are of pixels
    task = vd.Task(model.eval(), x, labels=labels, space=space, name="EfficientNet-lite0, 250 photos")
    return task if device is None else task.to(device)


def cell(task: vd.Task, metric: vd.gef.GEF, label: str) -> dict[str, Any]:
    """Score one explainer: mean, standard error, ceiling, seconds, rows, and the most memory held."""
    name, settings = METHODS[label]
    on_gpu = task.device.type == "cuda"
    if on_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    scores = vd.score(metric, task, as_explainer(name, **settings))
    if on_gpu:
        torch.cuda.synchronize()
    taken = time.perf_counter() - start
    kept = scores.values[~scores.values.isnan()]
    return {
        "explainer": label,
        "form": metric.form,
        "mean": float(kept.mean()) if len(kept) else None,
        "error": float(kept.std() / len(kept) ** 0.5) if len(kept) > 1 else None,
        "ceiling": float(scores.details["ceiling"].nanmean()),
        "partial": float(scores.details["partial"].nanmean()),
        "flagged": scores.flagged,
        "paper (Fast-GEF, ResNet-18)": PAPER.get(label),
        "seconds": round(taken, 2),
        "forward": scores.cost.forward,
        "backward": scores.cost.backward,
        "MiB": torch.cuda.max_memory_allocated() // 2**20 if on_gpu else None,
    }


def plan_of(forms: list[str], exact: list[str]) -> list[tuple[str, str]]:
    """Cells in the order of their worth: the exact gradient first, then fast for all, then the rest."""
    cells = [(form, label) for form in forms if form != "fast" for label in exact]
    cheap = [("fast", label) for label in METHODS] if "fast" in forms else []
    return [*cells[:1], *cheap, *cells[1:]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prepare", type=Path, help="write the arrays into this folder and stop")
    parser.add_argument("--data", type=Path, help="the folder that --prepare wrote")
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--samples", type=int, default=250)
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--forms", nargs="+", default=["reference", "fast", "arc"])
    parser.add_argument("--exact", nargs="+", default=list(EXACT), choices=list(METHODS))
    parser.add_argument("--path", default="published", choices=["published", "fitted"])
    parser.add_argument("--device", default=None)
    parser.add_argument("--rows", type=int, help="rows a chunk, where others use the card too")
    parser.add_argument("--minutes", type=float, default=0, help="start no further cell after so long")
    given = parser.parse_args()
    if given.prepare:
        path = prepare(given.prepare)
        print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB")
        return
    if given.data is None:
        parser.error("give --data FOLDER, as --prepare wrote it")
    given.out.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    task = photos_task(given.data / FILE, given.samples, given.device)
    if given.rows:
        task = task.with_plan(vd.Plan(rows=given.rows))
    accuracy = float((task.predictions == task.labels).double().mean())
    start = time.perf_counter()
    path = vd.gef.FastGEF(path=given.path).noise_path(task)
    head = {
        "task": repr(task),
        "accuracy": accuracy,
        "path": path.to_json(),
        "path seconds": round(time.perf_counter() - start, 2),
        "rows a chunk": task.predictor.rows,
        "torch": torch.__version__,
    }
    print(json.dumps({**head, "path": str(path)}), flush=True)
    cells: list[dict[str, Any]] = []
    for form, label in plan_of(given.forms, given.exact):
        if given.minutes and time.perf_counter() - begin > 60 * given.minutes:
            print(f"out of time before {form} of {label}", flush=True)
            break
        try:
            metric = metric_of(form)(form=form, path=given.path, draws=given.draws)  # type: ignore[arg-type]
            cells.append(cell(task, metric, label))
        except vd.errors.VeridicalError as error:
            cells.append({"explainer": label, "form": form, "error message": str(error)})
        print(json.dumps(cells[-1]), flush=True)
        (given.out / "efficientnet.json").write_text(json.dumps({**head, "cells": cells}, indent=1))


if __name__ == "__main__":
    main()
