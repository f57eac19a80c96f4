"""What cannot be is refused, in a sentence that names it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import veridical as vd
from tests.concepts.conftest import draw
from veridical.concepts import CRAFT, MCD, NMF, PCA, Concepts, ConceptSHAP, Embeddings, Head, judge
from veridical.errors import VeridicalError, VeridicalWarning

HEAD = Head(draw(1, 3, 12), draw(2, 3))
VALUES = draw(3, 30, 12).abs() + 3 * HEAD.weight.clamp(min=0)[torch.arange(30) % 3]
ROWS = Embeddings.of(VALUES, HEAD)
ONES = Concepts.of(HEAD.weight[:, None], torch.ones(3, 1))
SMALL = Embeddings.of(1e-14 * VALUES, HEAD)
compare = vd.concepts.compare


def given(values=VALUES, outputs=ROWS.outputs, labels=None, seen=None) -> Embeddings:
    return Embeddings(values, outputs, ROWS.ids, labels, seen=seen)


def holed(values: torch.Tensor, hole: float) -> torch.Tensor:
    return values.index_fill(0, torch.tensor([4]), hole)


REFUSED = {
    "no concept method is called 'pcaa'": lambda: compare(ROWS, ["pcaa"], test=ROWS, head=HEAD),
    "got a int": lambda: compare(ROWS, [3], test=ROWS, head=HEAD),
    "at least one concept method": lambda: compare(ROWS, {}, test=ROWS, head=HEAD),
    "two entries are called pca": lambda: compare(ROWS, [PCA(2), PCA(2)], test=ROWS, head=HEAD),
    "concept method is called": lambda: vd.audit(vd.tasks.load("known/linear"), concepts=["nmff"]),
    "n_concepts is a whole number from 1": lambda: PCA(0),
    "a pool of 3": lambda: ConceptSHAP(5, pool=3),
    "not shared": lambda: ConceptSHAP(2, shared=True),
    "gamma is a finite number above 1": lambda: MCD(gamma=0.5),
    r"negative values .* PCA, KMeans, ICA, CDISCO": lambda: NMF(2).fit(given(-VALUES), HEAD),
    "more train rows": lambda: ConceptSHAP(5, pool=12).fit(ROWS.take(slice(0, 5)), HEAD),
    "or shared=True": lambda: CRAFT(2, ridge=1.0).fit(replace(SMALL, kind="crops"), HEAD),
    "embeddings have NaN": lambda: Embeddings.of(holed(VALUES, math.inf), HEAD),
    "outputs have NaN": lambda: given(outputs=holed(ROWS.outputs, math.nan)),
    "weights have NaN": lambda: Head(torch.full((3, 12), math.nan), torch.zeros(3)),
    "the largest value is 1": lambda: Embeddings.of(VALUES / VALUES.max() * 1e-200, HEAD),
    "scale the embeddings": lambda: Embeddings.of(1e30 * VALUES, HEAD),
    r"expected \(samples, outputs\)": lambda: given(outputs=ROWS.outputs[:, 0]),
    "what the head sees": lambda: given(VALUES[:, None], seen=VALUES[:, :3]),
    "2 outputs each, the head has 3": lambda: PCA(2).fit(given(outputs=ROWS.outputs[:, :2]), HEAD),
    "2 outputs each, the": lambda: judge(
        ONES, given(outputs=ROWS.outputs[:, :2]), replace(HEAD, exact=False)
    ),
    "class number each, from 0 to 2": lambda: judge(ONES, given(labels=torch.full((30,), 3)), HEAD),
    "complex": lambda: Embeddings.of(VALUES.to(torch.complex64), HEAD),
    "11 dimensions": lambda: Embeddings.of(torch.ones(2, 11), HEAD),
    "a multiclass head cannot have 1": lambda: Head(HEAD.weight[:1], torch.zeros(1)),
    "a binary head cannot have 3": lambda: Head(HEAD.weight, torch.zeros(3), "binary"),
    "regresion": lambda: Head(HEAD.weight, torch.zeros(3), "regresion"),
    r"a head has weights \(outputs": lambda: Head(HEAD.weight[:0], torch.zeros(0)),
    "1 of output 0 is a zero": lambda: Concepts.of(torch.eye(2)[:, :1].expand(3, 2, 1), torch.ones(3, 2)),
    "do not belong together": lambda: Concepts.of(torch.ones(2, 1, 12), torch.ones(4, 1)),
    "the head expects 12": lambda: judge(Concepts.of(torch.ones(3, 1, 11), torch.ones(3, 1)), ROWS, HEAD),
    "collect with spatial=True": lambda: judge(ONES, ROWS, HEAD, "each"),
    "no measure is called": lambda: judge(ONES, ROWS, HEAD).scores("maee"),
    "does not hold 5 channels": lambda: vd.concepts.unflatten(ROWS, HEAD, 5),
    "the map has 6 channels": lambda: vd.concepts.at_positions(ONES, HEAD, 6),
}


@pytest.mark.parametrize("said", REFUSED)
def test_mistakes_are_named(said):
    with pytest.raises(VeridicalError, match=said):
        REFUSED[said]()


def test_concepts_that_say_less_than_they_seem_are_warned_about():
    with pytest.warns(VeridicalWarning, match="same direction"):
        Concepts.of(torch.ones(4, 2, 12), torch.ones(4, 2))
