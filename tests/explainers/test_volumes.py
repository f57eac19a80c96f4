"""Volumes (channels, depth, height, width) are images of three axes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import veridical as vd
from veridical.explainers import KernelShap, Occlusion, applicable, registry
from veridical.explainers.controls import image_edges
from veridical.plots import slices
from veridical.report.gallery import gallery
from veridical.values.space import Space

SIDE = 6
FEW = {"lime": {"draws": 330}, "rise": {"draws": 40}, "kernel_shap": {"budget": 330}, "hsic": {"draws": 40}}


@pytest.fixture(scope="module")
def task() -> vd.Task:
    torch.manual_seed(0)
    layers = [nn.Conv3d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool3d(2), nn.Conv3d(4, 4, 3, padding=1)]
    net = nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(4 * 27, 3))
    shape = (2, SIDE, SIDE, SIDE)
    masks = torch.rand(3, 1, SIDE, SIDE, SIDE) > 0.5
    return vd.Task(net, torch.rand(3, *shape), train=torch.rand(4, *shape), masks=masks)


def test_voxels_are_shared_over_channels_and_named_by_place(task: vd.Task) -> None:
    assert task.modality == "image"
    assert (task.space.kind, task.space.n_features) == ("voxel", SIDE**3)
    assert task.space.feature_name(1 * 36 + 2 * 6 + 3) == "voxel (1, 2, 3)"
    blocks = Space.patches((2, 4, 6, 6), 2)
    assert blocks.n_features == 2 * 3 * 3
    assert blocks.labels[0, 2, 0, 0] == 9
    assert blocks.labels[0, 0, 2, 4] == 5


@pytest.mark.filterwarnings("ignore")
def test_every_explainer_and_metric_that_applies_works_on_volumes(task: vd.Task) -> None:
    names = applicable(task)
    assert {"gradcam", "lrp", "deeplift", "guided_backprop", "occlusion", "rise", "sobel"} <= set(names)
    for name in names:
        explainer = registry.make(name, **FEW.get(name, {}))
        found = explainer(task)
        assert found.values.shape == (3, SIDE**3), name
        assert found.cost == explainer._declared(task), name
    metrics = ("pixel_flipping", "deletion", "sensitivity_n", "infidelity", "sparseness", "pointing_game")
    for metric in metrics:
        assert bool(vd.score(metric, task, "gradient").values.isfinite().all()), metric
    with pytest.raises(vd.errors.VeridicalError, match=r"works on images"):
        vd.score("road", task, "gradient")


def test_a_window_is_a_cube(task: vd.Task) -> None:
    weights = torch.zeros(SIDE, SIDE, SIDE)
    weights[2, 2, 2] = 1.0
    linear = vd.Task(
        lambda x: torch.stack([(x[:, 0] * weights).sum((1, 2, 3)), x[:, 0, 0, 0, 0] * 0], 1),
        torch.ones(1, 1, SIDE, SIDE, SIDE),
        targets=[0],
        fill=0.0,
    )
    found = Occlusion(2, 2)(linear).maps()[0, 0]
    expected = torch.zeros_like(found)
    expected[2:4, 2:4, 2:4] = 1.0
    assert torch.equal(found, expected)


def test_voxels_are_joined_into_blocks(task: vd.Task) -> None:
    cells = KernelShap(budget=330).cells_of(task)
    assert cells is not None
    assert cells.count == 27
    assert cells.space.labels[0].unique().numel() == 27


def test_edges_of_a_volume_are_those_of_its_slices() -> None:
    volume = torch.rand(2, 1, 3, 5, 5)
    edges = image_edges(volume)
    torch.testing.assert_close(edges[1, 2], image_edges(volume[1:, :, 2])[0])


def test_a_gallery_shows_slices(task: vd.Task) -> None:
    made = {"gradient": vd.explain("gradient", task), "deeplift": vd.explain("deeplift", task)}
    shown = gallery(task, made, {})
    assert shown["kind"] == "image"
    assert shown["items"][0]["input"].startswith("data:image/png")
    assert slices(task.inputs[0]).shape == (2, SIDE, 3 * SIDE)
    assert [note.split(":")[0] for note in shown["notes"]] == ["deeplift"]
