"""Concept methods: closed forms, slow rewrites, invariances, mutants, bad input."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import qmc

from tests.concepts.conftest import draw
from tests.reference import surf as slow
from veridical.concepts import (
    CDISCO,
    CRAFT,
    ICA,
    ICE,
    NMF,
    PCA,
    SAE,
    Embeddings,
    Head,
    KMeans,
    ice_eval,
    judge,
)
from veridical.concepts.methods.decompositions import sobol_total
from veridical.concepts.solvers import nnls
from veridical.core.key import Key

LINEAR = (PCA, KMeans, ICA)


@pytest.mark.parametrize("method", LINEAR)
def test_all_directions_together_are_exact(method, head, train, test):
    whole = method(12, shared=True).fit(train, head)
    assert judge(whole, test, head).mae == pytest.approx(0, abs=1e-6)
    assert judge(method(3, shared=True).fit(train, head), test, head).mae > 0.05


@pytest.mark.parametrize("method", [PCA, KMeans, ICA, NMF, ICE, CDISCO, CRAFT])
def test_a_fit_depends_on_the_seed_alone(method, head, train):
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(1))
    one, again = method(3).fit(train, head), method(3).fit(train, head)
    assert torch.equal(one.vectors, again.vectors)
    assert torch.equal(one.importances, again.importances)
    if method in (PCA, CDISCO):
        other = method(3).fit(train.take(order), head)
        assert torch.allclose(other.vectors, one.vectors, atol=1e-7)


def test_pca_finds_the_axes_of_an_ellipsoid(head):
    rows = torch.zeros(6, 12, dtype=torch.float64)
    rows[0, 2], rows[1, 2], rows[2, 5], rows[3, 5] = 3, -3, 2, -2
    rows += 7
    found = PCA(2).find(rows, head.weight[0], Key(0))
    assert torch.allclose(found.vectors.abs(), torch.eye(12, dtype=torch.float64)[[2, 5]], atol=1e-12)
    assert torch.allclose(found.centre, torch.full((12,), 7.0, dtype=torch.float64))


def test_ica_spans_what_pca_spans_and_finds_the_sources(head, train, test):
    assert judge(ICA(3).fit(train, head), test, head).mae == pytest.approx(
        judge(PCA(3).fit(train, head), test, head).mae, abs=1e-9
    )
    generator = torch.Generator().manual_seed(0)
    sources = torch.rand(4000, 2, generator=generator, dtype=torch.float64) - 0.5
    mixing = torch.zeros(2, 12, dtype=torch.float64)
    mixing[0, :3] = torch.tensor([1.0, 2.0, 0.5])
    mixing[1, 2:5] = torch.tensor([1.0, -1.0, 0.3])
    unit = torch.nn.functional.normalize(mixing, dim=-1)

    for method, finds in ((ICA, True), (PCA, False)):
        found = method(2).find(sources @ mixing, head.weight[0], Key(0)).vectors
        cosine = torch.nn.functional.normalize(found, dim=-1) @ unit.T
        assert (float(cosine.abs().amax(0).min()) > 0.99) == finds


def test_nnls_meets_the_optimality_conditions_on_hard_cases():
    vectors = draw(11, 3, 12, 6)
    vectors[0, 1] = vectors[0, 0]
    gram, seen = vectors @ vectors.mT, torch.einsum("gkd,nd->gnk", vectors, draw(12, 200, 6))
    codes = nnls(gram, seen)
    slope = seen - codes @ gram
    assert float(codes.min()) >= 0
    assert float(slope.max()) < 1e-6
    assert float((slope * codes).abs().max()) < 1e-6


def test_an_autoencoder_learns_a_planted_dictionary():
    atoms = torch.nn.functional.normalize(draw(20, 8, 16), dim=-1)
    codes = torch.zeros(1500, 8, dtype=torch.float64)
    pick = torch.rand(1500, 8, generator=torch.Generator().manual_seed(1)).argsort(1)[:, :2]
    codes.scatter_(1, pick, 1 + draw(21, 1500, 2).abs())
    head = Head(draw(22, 4, 16), torch.zeros(4))
    rows = Embeddings.of(codes @ atoms, head)
    method = SAE(2, steps=600, batch=128, rate=5e-3)
    concepts = method.fit(rows, head)
    found = judge(concepts, rows, head)
    nothing = judge(concepts.with_importances(concepts.importances * 0), rows, head)
    assert found.mae < 0.3 * nothing.mae
    assert found.mae == pytest.approx(ice_eval(concepts, rows, head).mae, abs=1e-9)
    assert int((concepts.project(rows.values) > 0).sum(-1).max()) <= 2
    assert found.flops == 2 * 2 * 4


def test_heads_of_other_kinds_group_their_rows_otherwise(train):
    values = train.values
    labels = Head(draw(30, 3, 12), torch.zeros(3), "multilabel")
    rows = Embeddings.of(values, labels)
    concepts = PCA(2).fit(rows, labels)
    positive = values[rows.outputs[:, 1] > 0]
    alone = PCA(2).find(positive, labels.weight[1], Key(0))
    assert torch.allclose(concepts.vectors[1], alone.vectors)
    number = Head(draw(31, 1, 12), torch.zeros(1), "regression")
    whole = PCA(2).fit(Embeddings.of(values, number), number)
    assert torch.allclose(whole.vectors[0], PCA(2).find(values, number.weight[0], Key(0)).vectors)


@pytest.mark.parametrize("method", [CDISCO, CRAFT])
def test_a_shared_dictionary_has_importances_of_every_output(method):
    """These weigh concepts by more than f . v: one dictionary, and a row of importances an output."""
    draw = torch.Generator().manual_seed(0)
    head = Head(torch.randn(5, 8, generator=draw), torch.zeros(5))
    rows = Embeddings.of(torch.rand(60, 8, generator=draw), head)
    found = method(3, shared=True).fit(rows, head)
    assert tuple(found.vectors.shape) == (1, 3, 8)
    assert tuple(found.importances.shape) == (5, 3)
    one = method(3).find(rows.values.double(), head.weight[2], Key(0))
    if method is CRAFT:
        assert torch.allclose(found.importances[2], one.importances)


@pytest.mark.parametrize("exchanges", [10, 0])  # what these leave open goes to scipy
def test_nnls_is_exact(monkeypatch, exchanges):
    monkeypatch.setattr("veridical.concepts.solvers._EXCHANGES", exchanges)
    vectors, h = draw(9, 2, 4, 7), draw(10, 15, 7)
    codes = nnls(vectors @ vectors.mT, torch.einsum("gkd,nd->gnk", vectors, h))
    best = [[slow.nnls_by_enumeration(row, own) for row in h.numpy()] for own in vectors.numpy()]
    assert np.allclose(codes.numpy(), best, atol=1e-8)


def test_cdisco_equals_its_slow_rewrite(head, train):
    concepts = CDISCO(3).fit(train, head)
    owner = train.outputs.argmax(1)
    for output in range(4):
        vectors, scores = slow.cdisco(train.values[owner == output].numpy(), head.weight[output].numpy(), 3)
        assert np.allclose(concepts.vectors[output].numpy(), vectors, atol=1e-6)
        assert np.allclose(concepts.importances[output].numpy(), scores, atol=1e-6)


def test_sobol_total_indices_on_a_linear_head():
    pull = torch.tensor([[1.0, -2.0, 0.5], [3.0, 0.0, 1.0]], dtype=torch.float64)
    exact = pull.square() / pull.square().sum(-1, keepdim=True)
    assert torch.allclose(sobol_total(pull), exact)
    assert torch.allclose(sobol_total(pull, 1024), exact, atol=0.02)
    points = torch.from_numpy(qmc.Halton(6, scramble=False).random(33)[1:])
    a, b = points[:, :3].tolist(), points[:, 3:].tolist()
    for row in pull:
        assert np.allclose(sobol_total(row[None], 32)[0], slow.jansen_total(row.tolist(), a, b), atol=1e-12)
    assert sobol_total(torch.zeros(1, 3, dtype=torch.float64), 32).tolist() == [[0, 0, 0]]
