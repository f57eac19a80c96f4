"""Heads over flattened maps."""

from __future__ import annotations

import torch
from torch import nn

import veridical as vd
from veridical.concepts import Concepts, Embeddings, Head
from veridical.concepts.concepts import unfold

CHANNELS, SIDE, CLASSES = 6, 3, 4
PLACES = SIDE * SIDE


def flat_task() -> vd.Task:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, CHANNELS, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(CHANNELS * PLACES, CLASSES)
    )
    inputs = torch.rand(40, 1, 2 * SIDE, 2 * SIDE, generator=torch.Generator().manual_seed(0))
    return vd.Task(model, inputs, train=inputs)


def parts_of(task: vd.Task) -> tuple[Embeddings, Head]:
    parts = vd.concepts.split(task)
    return parts.test(), parts.head


def test_positions_are_those_of_the_map():
    task = flat_task()
    rows, head = parts_of(task)
    maps = task.predictor.model[:2](task.inputs)
    each, summed = vd.concepts.unflatten(rows, head, CHANNELS)
    assert torch.equal(each.values, maps.flatten(2).transpose(1, 2))
    assert tuple(summed.weight.shape) == (CLASSES, CHANNELS)
    # a map that is the same everywhere
    constant = torch.rand(CHANNELS, dtype=torch.float64)
    flat = constant[:, None].expand(-1, PLACES).reshape(1, -1)
    assert torch.allclose(head.outputs(flat), summed.outputs(constant[None]))


def test_a_complete_basis_is_the_model():
    rows, head = parts_of(flat_task())
    basis = Concepts.of(torch.eye(CHANNELS), unfold(head.weight, PLACES).sum(1))
    whole = vd.concepts.at_positions(basis, head, CHANNELS)
    found = vd.concepts.judge(whole, rows, head)
    assert (found.mae, found.emd, vd.concepts.ice_eval(whole, rows, head).mae) == (0, 0, 0)


def test_importances_count_at_positions():
    """They were replaced by the head's own: ones, zeros and noise scored alike."""
    rows, head = parts_of(flat_task())
    weight = unfold(head.weight, PLACES)
    own = weight.sum(1)
    basis = Concepts.of(torch.eye(CHANNELS), own)

    def surrogate(importances):
        given = basis.with_importances(importances)
        return vd.concepts.at_positions(given, head, CHANNELS).surrogate(rows.values, head)

    assert torch.allclose(surrogate(0 * own), head.bias.expand(len(rows), -1))
    right = surrogate(own) - head.bias
    cancels = (own.abs() <= 0.05 * weight.abs().sum(1)).any()
    assert cancels or torch.allclose(surrogate(3 * own) - head.bias, 3 * right, atol=1e-9)
    assert float((surrogate(torch.ones_like(own)) - surrogate(own)).abs().mean()) > 0.01


def test_importances_of_a_concept_that_cancels_are_spread_evenly():
    head = Head(torch.tensor([[1.0, -1.0], [1.0, 2.0]]), torch.zeros(2))  # one channel, two positions
    given = Concepts.of(torch.ones(1, 1), torch.tensor([[4.0], [6.0]]))
    found = vd.concepts.at_positions(given, head, 1)
    assert torch.allclose(found.importances, torch.tensor([[2.0, 2.0], [2.0, 4.0]], dtype=torch.float64))
    assert any("1 importances are spread evenly" in note for note in found.notes)


def test_by_hand_with_a_centred_method():
    rows, head = parts_of(flat_task())
    each, summed = vd.concepts.unflatten(rows, head, CHANNELS)
    fitted = vd.concepts.PCA(2, shared=True).fit(each, summed)
    spread = vd.concepts.at_positions(fitted, head, CHANNELS)
    vectors, centre = fitted.vectors[0], fitted.centre[0]
    wanted = head.bias.repeat(len(rows), 1)
    for j in range(PLACES):
        h = each.values[:, j].double() - centre
        rebuilt = (h @ vectors.T) @ vectors + centre
        wanted = wanted + rebuilt @ head.weight[:, j::PLACES].T
    assert torch.allclose(spread.surrogate(rows.values, head), wanted, atol=1e-10)
    assert any("9 positions" in note for note in spread.notes)
