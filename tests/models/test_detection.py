"""Outputs of detectors and segmentations that a map can explain."""

import pytest
import torch
from torch import nn

import veridical as vd
from veridical.models.detection import overlap

BOX = (2.0, 2.0, 5.0, 5.0)
SCENES = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))


class Detector(nn.Module):
    """Two fixed proposals; how sure the first is depends on the pixels inside its box alone."""

    def __init__(self, listed=False):
        super().__init__()
        self.listed, self.gain = listed, nn.Parameter(torch.ones(2))

    def forward(self, x):
        boxes = torch.tensor([BOX, (0.0, 0.0, 2.0, 2.0)]).expand(len(x), 2, 4)
        bright = x[:, 0, 2:5, 2:5].mean((1, 2))[:, None] * self.gain
        scores = torch.stack([bright, torch.full_like(bright, 0.1)], 1)  # (N, K, classes)
        if not self.listed:
            return boxes, scores
        labels = torch.tensor([1, 0])
        return [{"boxes": b, "scores": s[:, 0], "labels": labels} for b, s in zip(boxes, scores, strict=True)]


def test_overlaps_are_those_by_hand():
    boxes = torch.tensor([BOX, (2.0, 2.0, 5.0, 3.5), (5.0, 5.0, 6.0, 6.0), (0.0, 0.0, 10.0, 10.0)])
    torch.testing.assert_close(overlap(boxes, torch.tensor(BOX)), torch.tensor([1.0, 0.5, 0.0, 0.09]))


@pytest.mark.parametrize("detector", [Detector(), Detector(listed=True)])
@pytest.mark.parametrize("label", [None, 1])
def test_the_score_of_a_box_is_explained_where_the_box_is(detector, label):
    task = vd.Task(detector, SCENES, output=vd.models.BoxScore(BOX, label), head="regression")
    torch.testing.assert_close(task.outputs[:, 0], SCENES[:, 0, 2:5, 2:5].mean((1, 2)))
    maps = vd.explain("feature_ablation", task).maps()[:, 0]
    assert maps[:, 2:5, 2:5].min() > 0
    torch.testing.assert_close(maps.sum(), maps[:, 2:5, 2:5].sum())


def test_nothing_found_scores_0_and_an_instance_has_its_classes():
    nothing = [{"boxes": torch.zeros(0, 4), "scores": torch.zeros(0), "labels": torch.zeros(0)}]
    assert vd.models.BoxScore(BOX)(nothing).tolist() == [[0.0]]
    task = vd.Task(Detector(), SCENES, output=vd.models.InstanceClasses(BOX), targets=1)
    assert task.n_outputs == 2
    assert vd.explain("gradient", task).maps()[:, 0, 2:5, 2:5].min() > 0


def test_the_mean_of_a_region_reads_nothing_beyond_it():
    mask = torch.zeros(8, 8, dtype=torch.bool)
    mask[2:4, 2:4] = True
    task = vd.Task(nn.Conv2d(1, 3, 3, padding=1), SCENES, output=vd.models.MaskMean(mask))
    maps = vd.explain("input_x_gradient", task).maps()[:, 0]
    assert maps[:, 5:].abs().max() < 1e-6 < maps[:, 1:5, 1:5].abs().max()


def test_what_cannot_be_read_is_said():
    with pytest.raises(vd.errors.ShapeError, match="boxes"):
        vd.models.BoxScore(BOX)((torch.zeros(2, 4), torch.zeros(2)))
    with pytest.raises(vd.errors.ShapeError, match="the mask has"):
        vd.models.MaskMean(torch.ones(2, 2))(torch.zeros(1, 3, 8, 8))
    with pytest.raises(vd.errors.InputError, match="empty"):
        vd.models.MaskMean(torch.zeros(8, 8))(torch.zeros(1, 3, 8, 8))
