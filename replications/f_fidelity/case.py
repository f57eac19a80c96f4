"""One sample seen closely: what each metric says of its map and of worse ones, size by size (D.6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from veridical.core.key import Key
from veridical.errors import InputError
from veridical.explainers.transforms import degrade
from veridical.fidelity.artefact import Finetuned
from veridical.fidelity.correctness import Reference, studied_maps
from veridical.fidelity.falls import evaluated_sizes
from veridical.fidelity.metrics import LEVELS, Fidelity, Variant
from veridical.fidelity.ranking import PAIRS, RATIOS, Agreement, agreement, default_metrics, falls_of
from veridical.values.task import Task

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False, repr=False)
class CaseStudy:
    """Falls (ratios, sizes) of one sample for every metric and sign, and how they follow the known order."""

    sample: int
    ratios: tuple[float, ...]
    sizes: tuple[float, ...]
    falls: Mapping[str, Mapping[str, Tensor]]
    agreements: Mapping[str, Agreement]

    def to_frame(self) -> pd.DataFrame:
        """One row per metric, sign, ratio and size."""
        import pandas as pd

        rows = [
            {"metric": name, "sign": sign, "ratio": ratio, "size": size, "fall": value}
            for name, found in self.falls.items()
            for sign, values in found.items()
            for ratio, row in zip(self.ratios, values.tolist(), strict=True)
            for size, value in zip(self.sizes, row, strict=True)
        ]
        return pd.DataFrame(rows)

    def plot(self) -> Figure:
        """Falls over sizes, a line per ratio: metrics beside each other, plus above minus (figure 2)."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(3 * len(self.falls), 5), layout="constrained")
        axes = figure.subplots(2, len(self.falls), sharex=True, squeeze=False)
        for column, (name, found) in enumerate(self.falls.items()):
            for row, (sign, values) in enumerate(found.items()):
                for place, ratio in enumerate(self.ratios):
                    shade = f"C{place}" if place else "black"
                    axes[row, column].plot(
                        self.sizes, values[place].cpu(), color=shade, label=f"{ratio:.0%} degraded"
                    )
                axes[row, column].set_title(f"{name}, {sign}", fontsize=9)
        for axis in axes[1]:
            axis.set_xlabel("explanation size")
        axes[0, 0].set_ylabel("fall")
        axes[1, 0].set_ylabel("fall")
        axes[0, 0].legend(fontsize=7)
        return figure

    def __repr__(self) -> str:
        names = list(self.falls)
        width = max(18, *map(len, names))
        lines = [f"sample {self.sample}" + " " * 24 + "".join(f"{name:>{width}}" for name in names)]
        for kind in ("macro", "micro"):
            for pair in PAIRS:
                values = [getattr(self.agreements[name], kind)[pair][0] for name in names]
                cells = "".join(f"{'-' if v != v else f'{v:+.2f}':>{width}}" for v in values)
                lines.append(f"{f'{kind} {pair}':<32}{cells}")
        return "\n".join(lines)


def case_study(
    task: Task,
    sample: int,
    explainer: Any = "gradcam",
    *,
    finetuned: Finetuned | None = None,
    metrics: Mapping[str, Fidelity] | None = None,
    sizes: Sequence[float] = LEVELS,
    ratios: Sequence[float] = RATIOS,
    draws: int = 50,
    variant: Variant = "indicator",
    reference: Reference | None = None,
    seed: int = 0,
) -> CaseStudy:
    """Degrade the map of one sample (by its place in the task) and ask every metric at every size."""
    if not -len(task) <= sample < len(task):
        raise InputError(f"sample {sample} is none of the {len(task)} of this task")
    if metrics is None:
        if finetuned is None:
            raise InputError("give finetuned=fidelity.finetune(task), or the metrics to ask")
        metrics = default_metrics(finetuned, tuple(sizes), draws)
    place = sample % len(task)
    one = task[place : place + 1]
    about = studied_maps(one, explainer, reference, seed)
    one, base, truth = about.task, about.maps, about.truth
    found: dict[str, dict[str, list[Tensor]]] = {}
    for ratio in ratios:
        worse = degrade(base, ratio, Key(seed) / "ranking", 0)
        for name, answers in falls_of(metrics, one, worse, truth, variant, Key(seed)).items():
            for sign, values in answers.items():
                found.setdefault(name, {}).setdefault(sign, []).append(values[0])
    falls = {n: {s: torch.stack(rows) for s, rows in signs.items()} for n, signs in found.items()}
    levels = evaluated_sizes(one, next(iter(metrics.values())).sizes)
    agreements = {
        name: agreement(kept["plus"][None], kept["minus"][None], ratios, levels)
        for name, kept in falls.items()
    }
    return CaseStudy(int(one.ids[0]), tuple(ratios), levels, falls, agreements)
