"""Does any method follow the function, and not only the noise level? Iso-sigma beside q on real models.

    VERIDICAL_DATA=FOLDER python -m replications.gef.iso_sigma --out results [--samples 48] [--draws 20]
        [--seeds 5] [--only MNIST ...] [--device cuda]

A seed chooses the samples (of photos and snippets: the noise alone) and the noise. EfficientNet and MiniLM
are read from FOLDER/efficientnet.npz and FOLDER/minilm.npz, as `replications.gef.efficientnet --prepare` and
`replications.gef.minilm --prepare` write them.

Two controls tell what the numbers mean: `level` moves with the noise level alone (its map is noise of that
strength, the model is never asked), `output` is a fixed map that turns as the explained output moves: it
follows the function and knows no feature.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from scipy import stats
from torch import Tensor

import veridical as vd
from replications.gef import data, efficientnet, minilm
from replications.gef.tables import TABLES
from veridical.core import key as keyed
from veridical.explainers import Explainer
from veridical.gef import IsoSigma

METHODS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("gradient", {}),
    ("saliency", {}),
    ("input_x_gradient", {}),
    ("integrated_gradients", {"steps": 8}),
    ("smoothgrad", {"samples": 8}),
    ("guided_backprop", {}),
    ("deeplift", {}),
    ("gradcam", {}),
    ("lrp", {}),
    ("lrp_z_plus", {}),
    ("attention_rollout", {}),
    ("gradient_x_attention", {}),
    ("occlusion", {}),
    ("random", {}),
)
FEW_FEATURES = 64
"""Features up to which occlusion is affordable: it asks once for each."""


@dataclass(frozen=True)
class Level(Explainer):
    """A fixed map with noise as strong as the model's."""

    name: ClassVar[str] = "level"
    stochastic: ClassVar[bool] = True

    def attribute(self, task: vd.Task, context: vd.models.Context) -> Tensor:
        fixed = keyed.normal(vd.core.Key(0) / "fixed", task.draw_ids, 0, task.space.n_features, torch.float64)
        return fixed + task.noise_share * keyed.normal(
            context.key, task.draw_ids, 0, task.space.n_features, torch.float64
        )


@dataclass(frozen=True)
class Output(Explainer):
    """A fixed map turned towards another one by how much the explained output differs from the clean one."""

    name: ClassVar[str] = "output"

    def attribute(self, task: vd.Task, context: vd.models.Context) -> Tensor:
        one, two = (
            keyed.normal(vd.core.Key(0) / what, task.draw_ids, 0, task.space.n_features, torch.float64)
            for what in "ab"
        )
        place = task.targets[:, None]
        moved = task.predictor.outputs(task.inputs, task.side) - task.reference.outputs
        return one + moved.gather(1, place).double() * two


def cifar(samples: int, seed: int) -> vd.Task:
    """The public ResNet-20 on CIFAR-10 test images."""
    from replications.f_fidelity import data as pictures

    images, labels = pictures.cifar("test")
    chosen = data.some(samples, len(images), "test", seed)
    return vd.Task(pictures.resnet20(), images[chosen], labels=labels[chosen], name="CIFAR ResNet-20")


TASKS: dict[str, Callable[[int, int], vd.Task]] = {
    "MNIST LeNet": data.mnist,
    "CIFAR ResNet-20": cifar,
    "EfficientNet-lite0": lambda samples, _: efficientnet.photos_task(
        data.folder() / efficientnet.FILE, samples, None
    ),
    "MiniLM": lambda samples, _: minilm.minilm_task(data.folder() / minilm.FILE)[:samples],
    **TABLES,
}


def explainers(task: vd.Task) -> dict[str, Explainer]:
    """The controls, and every method that applies."""
    members: dict[str, Explainer] = {"level": Level(), "output": Output()}
    for name, settings in METHODS:
        explainer = vd.api.as_explainer(name, **settings)
        if explainer.inapplicable_reason(task) is None and (
            name != "occlusion" or task.space.n_features <= FEW_FEATURES
        ):
            members[name] = explainer
    return members


def one_seed(task: vd.Task, metric: IsoSigma, seed: int) -> list[dict[str, Any]]:
    """A row per explainer: q, iso-sigma, and how sure the latter is."""
    rows = []
    for who, found in metric.score_all(task, explainers(task), vd.core.Key(seed)).items():
        if isinstance(found, Exception):
            rows.append({"explainer": who, "failed": f"{type(found).__name__}: {found}"[:200]})
            continue
        rows.append(
            {
                "explainer": who,
                "seed": seed,
                "q": float(found.details["q"].nanmean()),
                "ceiling": float(found.details["ceiling"].nanmean()),
                "by_level": found.details["by_level"].nanmean(0).tolist(),
                "flagged": found.flagged,
                **found.provenance["iso_sigma"],
            }
        )
    return rows


def over_seeds(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row per explainer, the highest first: means over seeds, with an interval from their spread.

    With one seed the interval is that by draw.
    """
    out = []
    for who in dict.fromkeys(row["explainer"] for row in rows if "mean" in row):
        own = [row for row in rows if row["explainer"] == who]
        means = [row["mean"] for row in own]
        mean = statistics.fmean(means)
        low, high = own[0]["interval"]
        if len(own) > 1:
            reach = stats.t.ppf(0.975, len(own) - 1) * statistics.stdev(means) / math.sqrt(len(own))
            low, high = mean - reach, mean + reach
        out.append(
            {
                "explainer": who,
                "q": statistics.fmean(row["q"] for row in own),
                "ceiling": statistics.fmean(row["ceiling"] for row in own),
                "iso": mean,
                "interval": [low, high],
                "below_5_percent": sum(row["p_value"] <= 0.05 for row in own),
                "seeds": len(own),
                "by_level": [
                    statistics.fmean(each) for each in zip(*(r["by_level"] for r in own), strict=True)
                ],
                "power": statistics.fmean(row["power"] for row in own),
                "flagged": own[0]["flagged"],
            }
        )
    return sorted(out, key=lambda row: -row["iso"])


def shown(row: dict[str, Any]) -> str:
    """One row as a line."""
    low, high = row["interval"]
    levels = " ".join(f"{value:+.2f}" for value in row["by_level"])
    return (
        f"  {row['explainer']:<21} q {row['q']:+.3f} of {row['ceiling']:.3f}  iso {row['iso']:+.3f} "
        f"[{low:+.3f}, {high:+.3f}]  p <= .05 in {row['below_5_percent']} of {row['seeds']}  levels {levels}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=48)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", nargs="+", default=[""], help="beginnings of tasks' names")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no further seed after so long")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    metric, begin = IsoSigma(draws=given.draws), time.perf_counter()
    for title in [title for title in TASKS if title.startswith(tuple(given.only))]:
        rows: list[dict[str, Any]] = []
        paths = []
        for seed in range(given.seeds):
            if time.perf_counter() - begin > 60 * given.minutes:
                print(f"{title}: out of time before seed {seed}", flush=True)
                break
            task = TASKS[title](given.samples, seed).to(given.device)
            paths.append(metric.noise_path(task, vd.core.Key(seed)).to_json())
            rows += one_seed(task, metric, seed)
            found = over_seeds(rows)
            name = f"iso_sigma_{title.lower().replace(' ', '_')}.json"
            kept = {"samples": len(task), "device": given.device, "torch": torch.__version__}
            text = json.dumps({"task": title, **kept, "paths": paths, "rows": rows, "over_seeds": found})
            (given.out / name).write_text(text)
        if rows:
            ends = [round(path["sigma_max"], 2) for path in paths]
            print(f"{title}: {len(task)} samples, paths up to {ends}", flush=True)
            print("\n".join(map(shown, found)), flush=True)
            print("\n".join(f"  {r['explainer']}: {r['failed']}" for r in rows if "failed" in r), flush=True)


if __name__ == "__main__":
    main()
