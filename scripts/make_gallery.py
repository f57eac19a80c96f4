"""Draw every applicable explainer on one photo, digit, sentence, series and table row for docs/gallery.md.

`python scripts/make_gallery.py [photo digit sentence transformer series table]`
"""

from __future__ import annotations

import sys
from pathlib import Path

import veridical as vd
from veridical.plots import as_image

ASSETS = Path(__file__).resolve().parents[1] / "docs" / "assets" / "gallery"
SUBJECTS = {
    "photo": ("imagenet_photos", 0),
    "digit": ("digits", 3),
    "sentence": ("reviews", 0),
    "transformer": ("rotten_tomatoes_minilm", 0),
    "series": ("basic_motions_cnn", 0),
    "table": ("wine", 0),
}


def sentence(task: vd.Task) -> str:
    """The words of the first sample in their order: bars stand by strength."""
    valid = task.space.valid
    return " ".join(
        task.space.feature_name(i, 0)
        for i in range(task.space.n_features)
        if valid is None or bool(valid[0, i])
    )


def draw(name: str) -> Path:
    """One picture: the input where it is an image, then one panel an explainer."""
    from matplotlib.figure import Figure

    task_name, sample = SUBJECTS[name]
    task = vd.tasks.load(task_name)[sample]
    methods = vd.applicable(task)
    image = task.inputs.dim() == 4
    panels = len(methods) + (1 if image else 0)
    columns, width, height = (6, 2.2, 2.3) if image else (4, 4.6, 2.6)
    rows = -(-panels // columns)
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    if task.modality == "text":
        figure.suptitle(f'"{sentence(task)}", explained: output {int(task.targets[0])}', fontsize=11)
    plots = figure.subplots(rows, columns, squeeze=False).reshape(-1)
    for ax in plots[panels:]:
        ax.set_axis_off()
    if image:
        plots[0].imshow(as_image(task.inputs[0]).numpy(), cmap="gray_r")
        plots[0].set_axis_off()
        plots[0].set_title("input", fontsize=9)
    for ax, method in zip(plots[1 if image else 0 :], methods, strict=False):
        print(f"{name}: {method}", flush=True)
        vd.explain(method, task).plot(0, ax)
        ax.set_title(method, fontsize=9)
    path = ASSETS / f"{name}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=70)
    return path


if __name__ == "__main__":
    for chosen in sys.argv[1:] or SUBJECTS:
        print(draw(chosen))
