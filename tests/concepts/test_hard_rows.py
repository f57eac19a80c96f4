"""Rows that break methods: ties, dead units, too few, too low a rank, all the same, NaN, whole numbers."""

from __future__ import annotations

import math
import warnings

import pytest
import torch

import veridical as vd
from tests.concepts.conftest import draw
from veridical.concepts import Embeddings, Head
from veridical.concepts.methods import METHODS
from veridical.errors import InputError

QUICK = {"sae": {"steps": 20}, "c-shap": {"steps": 20, "coalitions": 64, "pool": 12}, "kmeans": {"starts": 2}}


def head() -> Head:
    return Head(draw(1, 3, 12), draw(2, 3))


def grouped(rows: torch.Tensor) -> torch.Tensor:
    """Non-negative rows, each lifted towards one of the classes."""
    lift = 3 * head().weight.clamp(min=0)
    return rows + lift[torch.arange(len(rows)) % 3]


def parts(rows: int) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.arange(rows) % 4, 12).double()


ROWS = {
    "ties": lambda: grouped(draw(3, 6, 12).abs()).repeat(8, 1),
    "dead units": lambda: grouped(draw(4, 45, 12).abs()) * (torch.arange(12) < 7),
    "planted parts, exactly": lambda: grouped(parts(48)),
    "all the same": lambda: grouped(torch.zeros(45, 12, dtype=torch.float64)),
    "whole numbers": lambda: grouped(draw(5, 45, 12).abs() * 4).round().long(),
    "float16": lambda: grouped(draw(5, 45, 12).abs()).half(),
    "huge": lambda: 1e8 * grouped(draw(6, 45, 12).abs()),
    "tiny": lambda: 1e-8 * grouped(draw(7, 45, 12).abs()),
}


def fitted(name: str, rows: torch.Tensor, count: int, shared: bool = False) -> vd.concepts.Judgement:
    method = METHODS[name](n_concepts=count, shared=shared, **QUICK.get(name, {}))
    given = Embeddings.of(rows, head())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        concepts = method.fit(given, head(), 0)
    assert bool(torch.isfinite(concepts.vectors).all())
    assert bool(torch.isfinite(concepts.importances).all())
    return vd.concepts.judge(concepts, given, head())


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("count", [1, 11])
def test_every_method_gives_numbers(name, kind, count):
    found = fitted(name, ROWS[kind](), count)
    for measure in ("mae", "emd", "rmse", "reconstruction_mse"):
        assert math.isfinite(found.summary[measure])
    assert found.concepts >= 0


@pytest.mark.parametrize("name", [n for n in METHODS if n not in ("c-shap", "sae")])
def test_fewer_rows_than_concepts_are_flagged_and_none_at_all_refused(name):
    rows = torch.cat([grouped(draw(8, 30, 12).abs()), 9 * head().weight[2:].clamp(min=0)])
    rows = rows[(Embeddings.of(rows, head()).outputs.argmax(1) != 2) | (torch.arange(31) == 30)]
    concepts = METHODS[name](n_concepts=4).fit(Embeddings.of(rows, head()), head())
    assert concepts.flags == {2: "1 samples for 4 concepts"}
    bias = concepts.surrogate(rows, head())[:, 2]
    assert torch.allclose(bias, head().bias[2].expand_as(bias))
    with pytest.raises(InputError, match="more train rows"):
        METHODS[name](n_concepts=4).fit(Embeddings.of(rows[:3], head()), head())
    with pytest.raises(InputError, match="fewer than the 4"):
        METHODS[name](n_concepts=4, shared=True).fit(Embeddings.of(rows[:3], head()), head())


@pytest.mark.parametrize("name", METHODS)
def test_more_concepts_than_dimensions_are_clusters_or_atoms_or_refused(name):
    """Ten clusters of an eight-dimensional embedding were refused with everything else."""
    more = {"pool": 20} if name == "c-shap" else QUICK.get(name, {})
    method = METHODS[name](n_concepts=13, **more)
    rows = Embeddings.of(grouped(draw(3, 60, 12).abs()), head())
    if name in ("kmeans", "sae"):
        found = vd.concepts.judge(method.fit(rows, head()), rows, head())
        assert found.concepts == 13
        assert math.isfinite(found.mae)
    else:
        with pytest.raises(InputError, match="12 dimensions"):
            method.fit(rows, head())


@pytest.mark.parametrize("name", ["pca", "ica", "cdisco"])
def test_no_concept_lies_where_there_are_no_rows(name):
    """Beyond the rank of the rows a direction is arbitrary: it would be shown, and charged, for nothing."""
    low = draw(9, 45, 3).abs() @ draw(10, 3, 12).abs()
    head_of_one = Head(draw(1, 1, 12), torch.zeros(1), "regression")
    method = METHODS[name](n_concepts=8)
    concepts = method.fit(Embeddings.of(low, head_of_one), head_of_one)
    assert 1 <= int(concepts.present.sum()) <= 3
    span = torch.linalg.svd(low, full_matrices=False)[2][:3]
    outside = concepts.vectors - concepts.vectors @ span.T @ span
    assert float(outside.abs().max()) < 1e-6 * float(concepts.vectors.abs().max())


@pytest.mark.parametrize("name", METHODS)
def test_rows_that_are_all_zero_hold_no_concepts(name):
    given = Embeddings.of(torch.zeros(30, 12), head())
    for shared in (False, True):
        if name == "c-shap" and shared:
            continue
        with pytest.raises(InputError, match="all embeddings are zero"):
            METHODS[name](n_concepts=2, shared=shared, **QUICK.get(name, {})).fit(given, head())
