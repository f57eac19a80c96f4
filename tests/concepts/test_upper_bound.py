"""The optimum, the split of errors, first-order heads, parsimony and pictures."""

from __future__ import annotations

import math

import matplotlib as mpl
import pytest
import torch
from torch import nn

import veridical as vd
from tests.concepts.conftest import draw, image_task
from veridical.concepts import PCA, Concepts, judge, plateau, rank_optimum
from veridical.concepts.plots import patch, strongest
from veridical.errors import InputError, NotApplicableError, ShapeError, UnknownNameError

mpl.use("Agg")


def test_the_optimum_has_the_error_of_the_left_out_singular_values(head, train):
    root = torch.linalg.cholesky(torch.cov(train.values.T, correction=0))
    values = torch.linalg.svdvals(head.weight @ root)
    for k in (1, 2, 3):
        found = judge(rank_optimum(train, head, k), train, head, companions=False)
        assert found.rmse == pytest.approx(math.sqrt(float(values[k:].square().sum()) / 4), rel=1e-9)
    assert judge(rank_optimum(train, head, 4), train, head).mae == pytest.approx(0, abs=1e-9)


def test_no_centred_method_beats_the_optimum(head, train):
    """PCA takes the mean out, so the optimum must have an offset too."""
    for k in (1, 2, 3):
        best = judge(rank_optimum(train, head, k), train, head, companions=False).rmse
        for method in (PCA, vd.concepts.ICA, vd.concepts.KMeans):
            own = method(k, shared=True).fit(train, head)
            fitted = vd.concepts.error_split(own, train, train, head).fitted
            assert best <= min(judge(own, train, head, companions=False).rmse, fitted.rmse) + 1e-9


def test_errors_are_split_into_concepts_and_importances(head, train, test):
    right = Concepts.of((head.weight / head.norms[:, None])[:, None], torch.rand(4, 1))
    found = vd.concepts.error_split(right, train, test, head)
    assert found.concepts == pytest.approx(0, abs=1e-9)
    assert found.importances == pytest.approx(found.own.mae)
    wrong = vd.concepts.random_concepts(head)
    found = vd.concepts.error_split(wrong, train, train, head)
    assert found.concepts > 0.1
    assert found.fitted.rmse <= found.own.rmse
    assert "concepts" in repr(found)
    codes = wrong.project(train.values)[:, 2, 0]
    wanted = head.outputs(train.values)[:, 2] - head.bias[2]
    by_hand = float((codes * wanted).sum() / codes.square().sum())
    fitted = vd.concepts.measures.least_squares_importances(wrong, train, head)
    assert float(fitted[2, 0]) == pytest.approx(by_hand)


class Curved(nn.Module):
    """y = W2 tanh(W1 h): after `front` the head is not linear."""

    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Linear(5, 4)
        self.bend = nn.Tanh()
        self.fc = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.bend(self.front(x)))


def curved_task() -> vd.Task:
    torch.manual_seed(0)
    return vd.Task(Curved().double(), draw(1, 20, 5), train=draw(2, 30, 5))


def test_the_first_order_head_is_the_tangent_and_its_errors_are_told_apart():
    task = curved_task()
    parts = vd.concepts.split(task, "front", first_order=True)
    model = task.model
    point = model.front(task.train).mean(0).detach()
    jacobian = torch.autograd.functional.jacobian(lambda h: model.fc(model.bend(h)), point)
    assert torch.allclose(parts.head.weight, jacobian.double(), atol=1e-9)
    assert not parts.head.exact
    at_mean = parts.head.outputs(point[None])[0]
    assert torch.allclose(at_mean, model.fc(model.bend(point)).detach().double(), atol=1e-9)
    tangent = Concepts.of(parts.head.weight[:, None], torch.ones(3, 1))
    found = judge(tangent, parts.test(), parts.head)
    assert found.explanation == pytest.approx(0, abs=1e-9)
    assert found.linearisation > 1e-3
    assert found.mae == pytest.approx(found.linearisation, abs=1e-9)
    other = judge(vd.concepts.random_concepts(parts.head), parts.test(), parts.head)
    assert abs(other.mae - other.explanation) <= other.linearisation + 1e-9


def test_a_linear_head_has_no_linearisation_error():
    task = curved_task()
    parts, exact = vd.concepts.split(task, first_order=True), vd.concepts.split(task)
    assert torch.allclose(parts.head.weight, exact.head.weight, atol=1e-9)
    assert judge(PCA(2).fit(parts.train(), parts.head), parts.test(), parts.head).linearisation < 1e-9
    with pytest.raises(UnknownNameError, match="no layer is called 'fron'"):
        vd.concepts.split(task, "fron", first_order=True)
    maps = vd.Task(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 3)), torch.rand(2, 1, 8, 8))
    with pytest.raises(NotApplicableError, match="an embedding is one vector"):
        vd.concepts.split(maps, "0", first_order=True)


def test_crops_belong_to_their_image():
    task = image_task(12)
    parts = vd.concepts.split(task)
    crops = vd.concepts.crop_embeddings(parts, task.inputs, 4)
    assert tuple(crops.values.shape) == (12, 4, 6)
    assert torch.allclose(crops.outputs, task.outputs, atol=1e-6)
    corner = nn.functional.interpolate(task.inputs[3:4, :, :4, 3:7], (8, 8), mode="bilinear")
    assert torch.allclose(crops.values[3, 1], parts.collect(corner).values[0], atol=1e-6)
    assert vd.concepts.CRAFT(1).fit(crops, parts.head).vectors.shape == (3, 1, 6)
    with pytest.raises(InputError, match="do not fit"):
        vd.concepts.crop_embeddings(parts, task.inputs, 9)


def test_pictures_show_the_strongest_patches():
    task = image_task(12)
    parts = vd.concepts.split(task)
    maps = parts.test(spatial=True)
    concepts = Concepts.of(torch.eye(6)[:2], torch.tensor([[1.0, -3.0]] * 3))
    samples, where = strongest(concepts, maps, 0, 3)
    codes = maps.values[:, :, 1]
    assert int(samples[1, 0]) == int(codes.amax(1).argmax())
    assert int(where[1, 0]) == int(codes[samples[1, 0]].argmax())
    assert torch.equal(patch(task.inputs[0], 0, (8, 8)), task.inputs[0][:, :3, :3])
    assert torch.equal(patch(task.inputs[0], 7, (2, 4)), task.inputs[0][:, 4:7, 5:])
    figure = vd.concepts.concept_grid(concepts, maps, parts.head, task.inputs, output=1, patches=3)
    assert len(figure.axes) == 2 * 3 + 2
    assert figure.axes[0].get_ylabel() == "concept 1"
    curve = vd.concepts.parsimony(PCA(shared=True), parts, counts=(1, 2))
    assert curve.plot().get_xlabel() == "concepts per output"
    with pytest.raises(ShapeError, match="images of the embeddings"):
        vd.concepts.concept_grid(concepts, maps, parts.head, task.inputs[:3])
    with pytest.raises(InputError, match="outputs 0 to 2"):
        vd.concepts.concept_grid(concepts, maps, parts.head, task.inputs, output=3)


def test_the_plateau_is_where_more_concepts_stop_paying():
    assert plateau([1, 2, 4, 8], [10.0, 4.0, 1.2, 1.0]) == 4
    assert plateau([1, 2, 3], [1.0, 1.0, 1.0]) == 1
    assert plateau([1, 2, 3], [1.0, 2.0, 3.0]) == 1
    assert plateau([1, 2, 3], [9.0, 6.0, 3.0]) is None  # it still falls
    assert plateau([1, 2, 5], [0.7, 0.3, 0.0]) == 5  # nothing is left
    with pytest.raises(InputError, match="one error per count"):
        plateau([1], [])
    for bad in (float("nan"), float("inf")):
        with pytest.raises(InputError, match="finite numbers"):
            plateau([1, 2, 3], [bad, 1.0, 0.5])
