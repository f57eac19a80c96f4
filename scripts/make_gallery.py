"""Draw every applicable explainer on one photo, digit, sentence, series and table row for docs/gallery.md.

`python scripts/make_gallery.py [photo digit sentence transformer series table]`. Images show each map over
the input; the others show one line per explainer, from the first feature to the last. `--maps FILE` takes
maps that were computed elsewhere, on a GPU say: torch.save of a dictionary from explainer to values.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

import veridical as vd
from veridical.plots import as_image

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from scripts.docs_site.cards import quietly  # noqa: E402
from scripts.docs_site.facts import families  # noqa: E402

ASSETS = ROOT / "docs" / "assets" / "gallery"
SUBJECTS = {
    "photo": ("imagenet_photos", 3),
    "digit": ("digits", 3),
    "sentence": ("reviews", 0),
    "transformer": ("rotten_tomatoes_minilm", 0),
    "series": ("basic_motions_cnn", 0),
    "table": ("wine", 0),
}
CLASSES = {
    "imagenet_photos": {281: "tabby cat", 282: "tiger cat", 285: "Egyptian cat"},
    "digits": {i: f"a {i}" for i in range(10)},
    "reviews": {0: "negative", 1: "positive"},
    "rotten_tomatoes_minilm": {0: "rotten", 1: "fresh"},
    "basic_motions_cnn": {0: "badminton", 1: "running", 2: "standing", 3: "walking"},
    "wine": {0: "cultivar 1", 1: "cultivar 2", 2: "cultivar 3"},
}
DEAR = {"imagenet_photos": ("sobol", "shapley_sampling")}
"""Left out where they would ask the network thousands of rows for one picture."""
LOW, HIGH = "against the class", "for the class"


def scaled(values: Tensor) -> Tensor:
    """A map between -1 and 1. One without negative values runs from 0 at its least: only differences tell."""
    values = values.detach().float().cpu()
    low = values.min().clamp_min(0)
    return (values - low) / (values - low).abs().max().clamp_min(1e-30)


def label(task: vd.Task, task_name: str) -> str:
    number = int(task.targets[0])
    name = CLASSES.get(task_name, {}).get(number, f"class {number}")
    return f"explained: {name} ({float(task.outputs.softmax(1)[0, number]):.0%})"


def maps_of(task: vd.Task, stored: Path | None) -> dict[str, Tensor]:
    """The values of all maps, those of one family together."""
    known = {} if stored is None else torch.load(stored, weights_only=True)
    fit = set(known) or set(vd.explainers.applicable(task)) - set(DEAR.get(task.name, ()))
    out = {}
    for name in [name for names in families().values() for name in names if name in fit]:
        print(name, flush=True)
        out[name] = known[name] if known else vd.explain(name, task, seed=0).values[0]
    return out


def over_image(task: vd.Task, task_name: str, stored: Path | None) -> Figure:
    """The input with its class, then every map over a pale copy of it, and one colour bar."""
    maps = maps_of(task, stored)
    columns = 6
    rows = -(-(len(maps) + 1) // columns)
    figure = Figure(figsize=(1.75 * columns + 0.7, 1.98 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for ax in axes.reshape(-1):
        ax.set_axis_off()
    picture = as_image(task.inputs[0])
    grey = picture if picture.dim() == 2 else picture.mean(-1)
    dark = "gray" if picture.dim() == 3 else "gray_r"
    axes[0, 0].imshow(picture.numpy(), cmap=dark)
    axes[0, 0].set_title(label(task, task_name), fontsize=7.5, weight="bold")
    drawn: Any = None
    for ax, (name, values) in zip(axes.reshape(-1)[1:], maps.items(), strict=False):
        laid = scaled(task.space.expand(values[None].cpu())[0, 0])
        ax.imshow(grey.numpy(), cmap=dark, alpha=0.4)
        # what is near zero stays transparent, so that the picture shows where the map says nothing
        drawn = ax.imshow(
            laid.numpy(), cmap="RdBu_r", vmin=-1, vmax=1, alpha=(0.15 + 0.75 * laid.abs()).numpy()
        )
        ax.set_title(name, fontsize=8)
    bar = figure.colorbar(drawn, ax=axes, shrink=0.35, ticks=[-1, 0, 1], aspect=30)
    bar.ax.set_yticklabels([LOW, "nothing", HIGH], fontsize=8)
    return figure


def as_lines(task: vd.Task, task_name: str, stored: Path | None) -> Figure:
    """One line per explainer and one column per feature, in the order of the input."""
    maps = maps_of(task, stored)
    valid = task.space.valid
    places = [i for i in range(task.space.n_features) if valid is None or bool(valid[0, i])]
    table = torch.stack([scaled(values[places]) for values in maps.values()])
    series = task.modality == "series"
    figure = Figure(figsize=(9.5, 0.24 * len(maps) + (2.6 if series else 2.0)), layout="constrained")
    if series:
        above, ax = figure.subplots(2, 1, sharex=True, height_ratios=[1.2, 0.24 * len(maps)])
        above.plot(
            task.inputs[0].T.cpu().numpy() if task.inputs.dim() == 3 else task.inputs[0].cpu().numpy(),
            linewidth=0.9,
        )
        above.set_ylabel("input", fontsize=8)
        above.set_title(label(task, task_name), fontsize=9, weight="bold")
        ax.set_xlabel("step")
    else:
        ax = figure.subplots()
        ax.set_title(label(task, task_name), fontsize=9, weight="bold")
        names = [task.space.feature_name(i, 0) for i in places]
        ax.set_xticks(range(len(names)), names, rotation=40, ha="right", fontsize=8.5)
    drawn = ax.imshow(table.numpy(), cmap="RdBu_r", vmin=-1, vmax=1, aspect="auto", interpolation="nearest")
    ax.set_yticks(range(len(maps)), list(maps), fontsize=8)
    ax.tick_params(length=0)
    bar = figure.colorbar(drawn, ax=ax, ticks=[-1, 0, 1], shrink=0.5, aspect=25)
    bar.ax.set_yticklabels([LOW, "nothing", HIGH], fontsize=8)
    return figure


@quietly
def draw(name: str, stored: Path | None = None) -> Path:
    task_name, sample = SUBJECTS[name]
    task = vd.tasks.load(task_name)[sample]
    figure = (over_image if task.modality == "image" else as_lines)(task, task_name, stored)
    path = ASSETS / f"{name}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)
    return path


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("subjects", nargs="*", help="which; all of them by default")
    parser.add_argument("--maps", type=Path, help="maps of one subject that were computed elsewhere")
    given = parser.parse_args()
    for chosen in given.subjects or SUBJECTS:
        print(draw(chosen, given.maps))
