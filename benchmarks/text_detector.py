"""Maps of a real detector: the text detector that the PyPI package rapidocr-onnxruntime (Apache-2.0) ships.

    python -m benchmarks.text_detector ch_PP-OCRv4_det_infer.onnx

A picture of two words is explained twice: why its pixels count as text (`MaskMean` of a word's region), and
why its box is found (`BoxScore`). The share of positive relevance on the word says whether a map finds it.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from scipy.ndimage import label
from torch import Tensor

import veridical as vd
from veridical.data.onnx_models import OnnxFunction

WORD = (19, 22, 97, 34)
"""Where the detector finds the word "faithful"."""
AROUND = (slice(16, 48), slice(16, 112))
"""The patches of 16 x 16 pixels in which the word lies."""


def picture() -> Tensor:
    """Two words and a box without any, as the detector takes images."""
    image = Image.new("RGB", (192, 96), (235, 230, 220))
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(28)
    draw.text((12, 10), "faithful", fill=(20, 20, 60), font=font)
    draw.rectangle((120, 55, 180, 90), fill=(120, 160, 90))
    draw.text((12, 60), "map", fill=(90, 20, 20), font=font)
    return torch.tensor(np.asarray(image) / 127.5 - 1, dtype=torch.float32).permute(2, 0, 1)[None]


def boxes(probabilities: Tensor) -> list[dict[str, Tensor]]:
    """Boxes of connected text pixels, with their mean probability."""
    found = []
    for page in probabilities[:, 0].numpy():
        labels, count = label(page > 0.3)
        places = [np.nonzero(labels == one + 1) for one in range(count)]
        corners = [[x.min(), y.min(), x.max() + 1, y.max() + 1] for y, x in places]
        scores = [page[place].mean() for place in places]
        found.append({"boxes": torch.tensor(corners).reshape(-1, 4).float(), "scores": torch.tensor(scores)})
    return found


def main() -> None:
    """Print how much of each map lies on the word."""
    network, image = OnnxFunction(sys.argv[1]), picture()

    def pixels(rows: Tensor) -> Tensor:
        return torch.cat([torch.as_tensor(network(row[None].numpy())) for row in rows])

    region = torch.zeros(96, 192, dtype=torch.bool)
    region[WORD[1] : WORD[3], WORD[0] : WORD[2]] = True
    explained = {
        "mask": (pixels, vd.models.MaskMean(region)),
        "box": (lambda rows: boxes(pixels(rows)), vd.models.BoxScore(tuple(map(float, WORD)))),
    }
    for what, (model, output) in explained.items():
        task = vd.Task(
            model,
            image,
            output=output,
            head="regression",
            space=vd.Space.patches((3, 96, 192), 16),
            fill=float(image.median()),
        )
        print(f"{what}: {float(task.outputs[0, 0]):.3f}")
        for name in ("feature_ablation", "rise", "kernel_shap", "shapley_sampling", "random"):
            made = vd.explain(name, task)
            seen = made.maps()[0, 0].clamp(min=0)
            score = vd.score("insertion", task, made, fill=task.fill, steps=18)
            share = float(seen[AROUND].sum() / seen.sum())
            print(f"  {name:18} {share:4.0%} on the word, insertion {score.mean():.2f}, {made.cost}")


if __name__ == "__main__":
    main()
