"""Does any method follow the function, and not only the noise level? Iso-sigma beside q on real models.

    VERIDICAL_DATA=FOLDER python -m replications.gef.iso_sigma --out results [--samples 48] [--draws 20]
        [--only MNIST]

Two controls tell what the numbers mean: `level` moves with the noise level alone (its map is noise of that
strength, the model is never asked), `output` is the input times the explained output, which follows the
function and knows no feature.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

import veridical as vd
from replications.gef import data
from veridical.explainers import Explainer
from veridical.gef import IsoSigma
from veridical.random import keyed

METHODS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("gradient", {}),
    ("saliency", {}),
    ("input_x_gradient", {}),
    ("integrated_gradients", {"steps": 8}),
    ("smoothgrad", {"samples": 8}),
    ("guided_backprop", {}),
    ("gradcam", {}),
    ("lrp", {}),
    ("random", {}),
)


@dataclass(frozen=True)
class Level(Explainer):
    """A fixed map with noise as strong as the model's."""

    name: ClassVar[str] = "level"
    stochastic: ClassVar[bool] = True

    def attribute(self, task: vd.Task, key: vd.Key) -> Tensor:
        fixed = keyed.normal(vd.Key(0) / "fixed", task.ids, 0, task.space.n_features, torch.float64)
        return fixed + task.noise_share * keyed.normal(key, task.ids, 0, task.space.n_features, torch.float64)


@dataclass(frozen=True)
class Output(Explainer):
    """A fixed map turned towards another one by how much the explained output differs from the clean one."""

    name: ClassVar[str] = "output"

    def attribute(self, task: vd.Task, key: vd.Key) -> Tensor:
        one, two = (
            keyed.normal(vd.Key(0) / what, task.ids, 0, task.space.n_features, torch.float64) for what in "ab"
        )
        place = task.targets[:, None]
        moved = task.predictor.outputs(task.inputs, task.side) - task.reference.outputs
        return one + moved.gather(1, place).double() * two


def cifar(samples: int) -> vd.Task:
    """The public ResNet-20 on CIFAR-10 test images."""
    from replications.f_fidelity import data as pictures

    images, labels = pictures.cifar("test")
    chosen = data.some(samples, len(images), "test")
    return vd.Task(pictures.resnet20(), images[chosen], labels=labels[chosen], name="CIFAR ResNet-20")


TASKS: dict[str, Callable[[int], vd.Task]] = {
    "MNIST LeNet": data.mnist,
    "CIFAR ResNet-20": cifar,
    "Avila MLP": data.avila,
    "Adult MLP": data.adult,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=48)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for title, make in TASKS.items():
        if given.only not in title:
            continue
        task = make(given.samples)
        metric = IsoSigma(draws=given.draws)
        members: dict[str, Explainer] = {"level": Level(), "output": Output()}
        for name, settings in METHODS:
            explainer = vd.api.as_explainer(name, **settings)
            if explainer.why_not(task) is None:
                members[name] = explainer
        path = metric.noise_path(task)
        print(f"{title}: {len(task)} samples, {path}", flush=True)
        rows = []
        for who, found in metric.score_all(task, members).items():
            if isinstance(found, Exception):
                print(f"  {who}: {found}")
                continue
            sure = found.provenance["iso_sigma"]
            rows.append(
                {
                    "explainer": who,
                    "q": float(found.details["q"].nanmean()),
                    "ceiling": float(found.details["ceiling"].nanmean()),
                    "by_level": found.details["by_level"].nanmean(0).tolist(),
                    **sure,
                }
            )
        for row in sorted(rows, key=lambda row: -row["mean"]):
            low, high = row["interval"]
            levels = " ".join(f"{value:+.2f}" for value in row["by_level"])
            scores = (
                f"q {row['q']:+.3f} of {row['ceiling']:.3f}  iso {row['mean']:+.3f} [{low:+.3f}, {high:+.3f}]"
            )
            print(
                f"  {row['explainer']:<21} {scores} p {row['p_value']:.3f}  levels {levels}",
                flush=True,
            )
        name = f"iso_sigma_{title.split()[0].lower()}.json"
        (given.out / name).write_text(json.dumps({"path": path.to_json(), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
