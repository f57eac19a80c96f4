"""Masked convolution and HU-MCD."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import veridical as vd
from veridical.concepts.materials import MaskedModel
from veridical.errors import InputError, NotApplicableError, ShapeError


def small_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 5, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(5, 7, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(7, 3),
    ).double()


def task_of() -> vd.Task:
    images = torch.rand(10, 2, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return vd.Task(small_net(), images, train=images)


def halves(images: torch.Tensor) -> torch.Tensor:
    labels = torch.zeros(images.shape[0], *images.shape[2:], dtype=torch.int64)
    labels[:, :, images.shape[3] // 2 :] = 1
    return labels


def check_masking(view: nn.Module, net: nn.Module) -> None:
    images = torch.rand(4, 2, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    whole = torch.ones(4, 8, 8, dtype=torch.bool)
    assert torch.allclose(view(images, whole), net[:-1](images), atol=1e-12)
    left = halves(images) == 0
    other = images.clone()
    other[:, :, :, 4:] = 9.0
    assert torch.allclose(view(images, left), view(other, left), atol=1e-12)
    assert not torch.allclose(view(images, left), view(images, ~left), atol=1e-3)


def test_what_is_outside_a_segment_is_never_seen():
    net = small_net()
    check_masking(MaskedModel(net, "3"), net)

    class Unmasked(nn.Module):
        def forward(self, images, mask):
            return net[:-1](images)

    with pytest.raises(AssertionError):
        check_masking(Unmasked(), net)
    # a kernel that averages answers a constant image alike wherever it stands, at a segment's border too
    flat = torch.full((1, 2, 8, 8), 0.7, dtype=torch.float64)
    inner = torch.zeros(1, 8, 8, dtype=torch.bool)
    inner[:, 2:6, 2:6] = True
    one = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1).double())
    nn.init.constant_(one[0].weight, 0.3)
    middle = one(flat)[:, :, 4, 4]
    assert torch.allclose(MaskedModel(one, "0")(flat, inner), middle, atol=1e-12)


class Functional(nn.Module):
    """A convolution that is called with a few of its arguments, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.relu, self.fc = nn.Parameter(torch.ones(5, 2, 3, 3)), nn.ReLU(), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.relu(nn.functional.conv2d(x, self.weight, padding=1)).mean((2, 3)))


@pytest.mark.parametrize("padding", ["same", "named", 1])
def test_a_convolution_is_masked_however_it_is_called(padding):
    net = small_net()
    if padding == "named":
        net = Functional().double()
    else:
        net[0] = nn.Conv2d(2, 5, 3, padding=padding, bias=False).double()
    images = task_of().inputs
    parts = vd.concepts.split(vd.Task(net, images, train=images))
    whole = vd.concepts.segment_embeddings(parts, images, lambda x: torch.zeros(len(x), 8, 8))
    assert torch.allclose(whole.values, parts.test().values, atol=1e-12)


def test_one_row_a_segment_under_the_class_of_its_image():
    task = task_of()
    parts = vd.concepts.split(task)
    before = task.predictor.meter.here.forward
    found = vd.concepts.segment_embeddings(parts, task.inputs, halves)
    assert task.predictor.meter.here.forward - before == 20 + 10
    assert tuple(found.values.shape) == (20, 7)
    assert torch.equal(found.outputs[::2], task.outputs)
    left = MaskedModel(task.model, "3")(task.inputs[3:4], halves(task.inputs[3:4]) == 0)
    assert torch.allclose(found.values[6:7], left, atol=1e-12)


def test_bad_segments_are_refused():
    task = task_of()
    parts = vd.concepts.split(task)
    with pytest.raises(ShapeError, match="the segmenter gave"):
        vd.concepts.segment_embeddings(parts, task.inputs, lambda images: images)
    with pytest.raises(InputError, match="no segment covers"):
        vd.concepts.segment_embeddings(parts, task.inputs, halves, smallest=0.9)
    with pytest.raises(NotApplicableError, match="from images"):
        vd.concepts.segment_embeddings(parts, task.inputs[:, 0], halves)
    flat = vd.Task(nn.Sequential(nn.Flatten(), nn.Linear(128, 3)).double(), task.inputs)
    with pytest.raises(NotApplicableError, match="MCD applies"):
        vd.concepts.segment_embeddings(vd.concepts.split(flat), task.inputs, halves)
