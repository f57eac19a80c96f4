"""Audit a real network and keep the verdict: EfficientNet-lite0 on photos, or MiniLM on film snippets.

    python scripts/show_audit.py prepare --data FOLDER         # once: models and rows into two files
    python scripts/show_audit.py photos --data FOLDER --effort standard --device cuda --out results
    python scripts/show_audit.py minilm --data FOLDER --effort quick --out results
    python scripts/show_audit.py render --data FOLDER --out results     # pages from what was kept

`prepare` needs the photos ($VERIDICAL_DATA/imagenet_samples) and the packages that bring the two models; the
audits need only torch, numpy, scipy and, for MiniLM, transformers; `render` makes the pages anywhere.
Photos are seen as 14 x 14 patches, blurred away where removed.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import veridical as vd
from replications.gef.efficientnet import FILE, photos_task
from replications.gef.efficientnet import prepare as prepare_photos
from replications.gef.minilm import FILE as MINILM
from replications.gef.minilm import minilm_task
from replications.gef.minilm import prepare as prepare_minilm
from veridical.auditing import Audit
from veridical.auditing.effort import some_of

CHEAP = ["saliency", "input_x_gradient", "guided_backprop", "gradcam", "lrp"]
FULL = [*CHEAP, "integrated_gradients", "smoothgrad", "gradient_shap"]
FEW = ["saliency", "attention_rollout"]
PHOTOS = 50


# --- models and rows ------------------------------------------------------------------------------------


def prepare(folder: Path) -> None:
    """Write some photos with EfficientNet-lite0, and some snippets with MiniLM, as small files."""
    with tempfile.TemporaryDirectory() as whole:
        stored = dict(np.load(prepare_photos(Path(whole)), allow_pickle=False))
    some = np.linspace(0, len(stored["photos"]) - 1, PHOTOS).astype(int)
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        folder / FILE, **{**stored, "photos": stored["photos"][some], "labels": stored["labels"][some]}
    )
    prepare_minilm(folder / MINILM)


def task_of(which: str, folder: Path, device: str | None = None) -> vd.Task:
    """The network on its data."""
    if which == "minilm":
        task = minilm_task(folder / MINILM)
    else:
        task = photos_task(folder / FILE, PHOTOS, None)
        task = task.with_space(vd.Space.patches(tuple(task.inputs.shape[1:]), 16), vd.fills.Blur(16))
        task = task.changed(name="EfficientNet-lite0, ImageNet photos")
    return task if device is None else task.to(device)


# --- results that travel --------------------------------------------------------------------------------


class _Pickler(pickle.Pickler):
    """Everything but the task and its model, which are made again where the result is read."""

    def persistent_id(self, obj: Any) -> str | None:
        return "task" if isinstance(obj, vd.Task) else "model" if isinstance(obj, torch.nn.Module) else None

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, torch.Tensor) and obj.is_cuda:
            return obj.detach().cpu().__reduce_ex__(4)
        return (
            torch.device.__reduce__(torch.device("cpu")) if isinstance(obj, torch.device) else NotImplemented
        )


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any, task: vd.Task) -> None:
        super().__init__(file)
        self.task = task

    def persistent_load(self, pid: str) -> Any:
        return self.task if pid == "task" else self.task.model


def keep(result: Audit, path: Path) -> None:
    """Store a result of our own to be rendered elsewhere."""
    with path.open("wb") as file:
        _Pickler(file, protocol=4).dump(result)


def kept(path: Path, task: vd.Task) -> Audit:
    """A result that `keep` wrote; read your own only, since a pickle runs what it says."""
    with path.open("rb") as file:
        found: Audit = _Unpickler(file, task).load()
    return found


def run(given: argparse.Namespace) -> None:
    """Audit, print, keep."""
    label = given.label or f"{given.which}_{given.effort}"
    task = task_of(given.which, given.data, given.device)
    named = {"photos": CHEAP, "minilm": FEW} if given.cheap else {"photos": FULL, "minilm": None}
    start, cpu = time.perf_counter(), time.process_time()
    result = vd.audit(
        task, explainers=named[given.which], effort=given.effort, samples=given.samples, progress=False
    )
    took = {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu}
    print(result)
    print({k: round(v, 1) for k, v in {**took, **result.seconds}.items()}, flush=True)
    given.out.mkdir(parents=True, exist_ok=True)
    where = {
        "device": str(task.device),
        "threads": torch.get_num_threads(),
        "cores": len(os.sched_getaffinity(0)),
    }
    told = {**result.to_json(), **took, **where}
    (given.out / f"{label}.json").write_text(json.dumps(told, indent=1))
    keep(result, given.out / f"{label}.pkl")


def render(given: argparse.Namespace) -> None:
    """Write a page for every result that was kept."""
    for path in sorted(given.out.glob("*.pkl")):
        which = path.stem.split("_")[0]
        seen = json.loads(path.with_suffix(".json").read_text())
        task = some_of(task_of(which, given.data), seen["effort"]["samples"], seen["seed"])
        print(kept(path, task).report(path.with_suffix(".html")))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("which", choices=["prepare", "photos", "minilm", "render"])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--effort", default="quick")
    parser.add_argument("--samples", type=int)
    parser.add_argument("--device")
    parser.add_argument("--cheap", action="store_true", help="leave out methods of many rows a map")
    parser.add_argument("--label", help="name of the files; begins with photos_ or minilm_")
    parser.add_argument("--out", type=Path, default=Path("audit"))
    given = parser.parse_args()
    if given.which == "prepare":
        prepare(given.data)
    elif given.which == "render":
        render(given)
    else:
        run(given)


if __name__ == "__main__":
    main()
