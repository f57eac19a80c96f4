"""Audit a real network and keep the verdict: EfficientNet-lite0 on photos, or MiniLM on film reviews.

    python scripts/show_audit.py photos --data FOLDER --effort standard --device cuda --out results
    python scripts/show_audit.py minilm --effort quick --out results

FOLDER holds what `python -m replications.gef.efficientnet --prepare FOLDER` wrote. Features are
14 x 14 patches.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import veridical as vd
from replications.gef.efficientnet import FILE, photos_task

CHEAP = ["saliency", "input_x_gradient", "guided_backprop", "gradcam", "lrp"]
FULL = [*CHEAP, "integrated_gradients", "smoothgrad", "gradient_shap"]


def task_of(which: str, folder: Path | None, samples: int, device: str | None) -> vd.Task:
    """The network on its data."""
    if which == "minilm":
        task = vd.tasks.load("rotten_tomatoes_minilm")[:samples]
        return task if device is None else task.to(device)
    if folder is None:
        raise SystemExit("give --data FOLDER with the prepared photos")
    task = photos_task(folder / FILE, samples, device)
    return task.with_space(vd.Space.patches(tuple(task.inputs.shape[1:]), 16), vd.fill.Blur(16))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("which", choices=["photos", "minilm"])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--effort", default="quick")
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--device")
    parser.add_argument("--cheap", action="store_true", help="leave out methods of many rows a map")
    parser.add_argument("--out", type=Path, default=Path("audit"))
    given = parser.parse_args()
    task = task_of(given.which, given.data, given.samples, given.device)
    explainers = None if given.which == "minilm" else CHEAP if given.cheap else FULL
    start = time.perf_counter()
    result = vd.audit(task, explainers=explainers, effort=given.effort, samples=given.samples)
    print(result)
    print(f"{time.perf_counter() - start:.0f} s", {k: round(v, 1) for k, v in result.seconds.items()})
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / f"{given.which}.json").write_text(json.dumps(result.to_json(), indent=1))


if __name__ == "__main__":
    main()
