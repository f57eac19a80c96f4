"""What classes look like to EfficientNet-lite0, and how faithful that is (Table A.5, global methods).

    python -m replications.gef.pictures --data FOLDER --device cuda --out results [--methods maco ...]

FOLDER is what `replications.gef.efficientnet --prepare` wrote. For each method and number of steps: pictures
of a few classes with the model's probability, and Fast-GEF over more classes.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import veridical as vd
from replications.gef.efficientnet import FILE, photos_task
from replications.gef.visualisers import METHODS, PHOTOS
from veridical.data.embedded import DEVIATION, MEAN
from veridical.gef import class_task

SHOWN = (84, 96, 292, 340, 388, 396, 404, 508, 780, 852, 928, 980)
"""Peacock, toucan, tiger, zebra, panda, lionfish, airliner, keyboard, schooner, tennis ball, ice cream,
volcano: things with a look of their own, among every fourth class."""
PAPER = {
    ("deep_viz", 50): 0.26,
    ("deep_viz", 100): 0.40,
    ("deep_viz", 250): 0.40,
    ("fourier", 50): 0.22,
    ("fourier", 100): 0.23,
    ("fourier", 250): 0.19,
    ("maco", 50): 0.29,
    ("maco", 100): 0.31,
    ("maco", 250): 0.31,
}
"""Fast-GEF on ImageNet with a ResNet-18."""


def pictures(task: vd.Task, method: str, steps: int, **settings: Any) -> tuple[np.ndarray, dict[str, Any]]:
    """Bytes (n, 224, 224, 3) of the shown classes, and what the model says to them."""
    known = set(task.predictions.tolist())
    start = time.perf_counter()
    explainer = METHODS[method](steps=steps, **{**PHOTOS[method], **settings})
    seen = explainer(class_task(task, [c for c in SHOWN if c in known]), vd.core.Key(0))
    made = seen.maps().to(task.inputs.dtype)
    images = (made * DEVIATION + MEAN).clamp(0, 1).movedim(1, -1)
    outputs, place = task.predictor.outputs(made), seen.targets[:, None]
    about = {
        "classes": seen.targets.tolist(),
        "probabilities": [round(p, 4) for p in outputs.softmax(-1).gather(1, place)[:, 0].tolist()],
        "logits": [round(v, 2) for v in outputs.gather(1, place)[:, 0].tolist()],
        "seconds": round(time.perf_counter() - start, 2),
    }
    return (images * 255).round().to(torch.uint8).cpu().numpy(), about


def faithfulness(task: vd.Task, method: str, steps: int, classes: int, draws: int) -> dict[str, Any]:
    """Fast-GEF on the published path, classes as samples."""
    own = sorted(set(task.predictions.tolist()))[:: max(1, 250 // classes)][:classes]
    on = class_task(task, own)
    metric = vd.gef.FastGEF(path="published", draws=draws)
    start = time.perf_counter()
    explainer = METHODS[method](steps=steps)
    scores = vd.score(metric, on, explainer)
    kept = scores.values[~scores.values.isnan()]
    return {
        "mean": float(kept.mean()),
        "error": float(kept.std() / len(kept) ** 0.5),
        "ceiling": float(scores.details["ceiling"].nanmean()),
        "partial": float(scores.details["partial"].nanmean()),
        "classes": len(on),
        "draws": draws,
        "settings": explainer.to_json(),
        "paper (ResNet-18)": PAPER.get((method, steps)),
        "rows": [scores.cost.forward, scores.cost.backward],
        "seconds": round(time.perf_counter() - start, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--device", default=None)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--steps", type=int, nargs="+", default=[250, 50, 100])
    parser.add_argument("--classes", type=int, default=25)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--samples", type=int, default=250)
    parser.add_argument("--settings", type=json.loads, default={}, help="JSON of a method's own settings")
    parser.add_argument("--only", choices=["pictures", "faithfulness"])
    parser.add_argument("--name", default="global")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    task = photos_task(given.data / FILE, given.samples, given.device)
    for method in given.methods:
        about: dict[str, Any] = {"settings": given.settings}
        for steps in given.steps:
            label = f"{given.name}-{method}"
            if given.only != "faithfulness":
                images, about[f"pictures, {steps} steps"] = pictures(task, method, steps, **given.settings)
                np.savez_compressed(given.out / f"{label}-{steps}.npz", images=images)
            if given.only != "pictures":
                about[f"Fast-GEF, {steps} steps"] = faithfulness(
                    task, method, steps, given.classes, given.draws
                )
            print(label, steps, json.dumps(about, indent=None), flush=True)
            (given.out / f"{label}.json").write_text(json.dumps(about, indent=1))


if __name__ == "__main__":
    main()
