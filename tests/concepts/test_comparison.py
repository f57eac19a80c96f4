"""Comparisons: what can be compared, what each method is fitted on, and the verdict."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import veridical as vd
from tests.concepts.conftest import draw, image_task
from veridical.concepts import PCA, SAE, Concepts, Dictionary, Embeddings, Head, KMeans, judge
from veridical.concepts.comparison import gap, stability
from veridical.core.key import Key
from veridical.errors import InputError, NotApplicableError


def dictionary() -> Dictionary:
    return Dictionary(draw(1, 20, 12), draw(2, 20), draw(3, 20, 12), draw(4, 12), "topk", 3)


def test_methods_names_concepts_and_dictionaries_stand_side_by_side(head, train, test):
    ready = Concepts.of(head.weight[:, None], torch.ones(4, 1), method="mine")
    found = vd.concepts.compare(
        train, ["pca", KMeans(2), ready, dictionary(), vd.concepts.NMF], test=test, head=head
    )
    assert list(found.judgements) == ["pca", "kmeans", "mine", "dictionary", "nmf"]
    assert found.judgements["mine"].mae == 0
    assert found.judgements["dictionary"].concepts == 3
    named = vd.concepts.compare(train, {"few": PCA(1), "many": PCA(4)}, test=test, head=head)
    assert list(named.judgements) == ["few", "many"]
    assert named.judgements["few"].method == "few"
    one = vd.concepts.compare(train, "pca", test=test, head=head)
    assert list(one.judgements) == ["pca"]


def test_numpy_is_welcome(head, train, test):
    same = Head(head.weight.numpy(), head.bias.numpy())
    rows = Embeddings.of(train.values.numpy(), same, labels=np.arange(160) % 4)
    ours, theirs = PCA(2).fit(train, head), PCA(2).fit(rows, same)
    assert torch.equal(ours.vectors, theirs.vectors)
    assert judge(theirs, Embeddings.of(test.values.numpy(), same), same).mae == judge(ours, test, head).mae


def test_every_method_gets_what_it_is_fitted_on_or_says_why_not(head, train, test):
    """HU-MCD without segments was MCD in every digit; CRAFT got no crops, SAE pooled rows."""
    found = vd.concepts.compare(
        train, [vd.concepts.HUMCD(1), vd.concepts.CRAFT(1), SAE(2, steps=3), PCA(2)], test=test, head=head
    )
    assert list(found.judgements) == ["pca"]
    assert "fitted on segments of images" in found.refused["hu-mcd"]
    assert "materials={'crops': ...}" in found.refused["craft"]
    assert "every position or token" in found.refused["sae"]
    given = vd.concepts.compare(
        train, [SAE(2, steps=3)], materials={"positions": train}, test=test, head=head
    )
    assert list(given.judgements) == ["sae"]
    task = image_task()
    parts = vd.concepts.split(task)
    for method in (vd.concepts.HUMCD(1), vd.concepts.CRAFT(1), SAE(1, steps=3)):
        with pytest.raises(NotApplicableError, match="kind 'pooled'"):
            method.fit(parts.train(), parts.head)


def test_a_layer_without_positions_feeds_an_autoencoder():
    """Two refusals pointed at each other: fit on positions, and collect without them."""
    parts = vd.concepts.split(vd.tasks.load("digits")[:40])
    rows, method = parts.train().take(slice(0, 200)), SAE(2, steps=3)
    alone = method.fit(rows, parts.head)
    again = vd.concepts.compare(rows, [method], test=parts.test(), head=parts.head)
    assert torch.equal(again.concepts["sae"].vectors, alone.vectors)
    assert len(vd.concepts.parsimony(method, rows, parts.test(), parts.head, counts=(1, 2)).errors()) == 2
    with pytest.raises(NotApplicableError, match="kind 'positions'"):
        vd.concepts.CRAFT(1).fit(rows, parts.head)


def test_a_task_supplies_positions_and_crops():
    task = image_task()
    parts = vd.concepts.split(task)
    found = vd.concepts.compare(task, [SAE(2, steps=20), vd.concepts.CRAFT(2)])
    wanted = SAE(2, steps=20).fit(parts.train(spatial=True), parts.head)
    assert torch.equal(found.concepts["sae"].vectors, wanted.vectors)
    crops = vd.concepts.crop_embeddings(parts, task.train, 4)
    assert torch.allclose(
        found.concepts["craft"].vectors, vd.concepts.CRAFT(2).fit(crops, parts.head).vectors
    )
    table = vd.Task(
        nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), torch.rand(20, 4), train=torch.rand(30, 4)
    )
    refused = vd.concepts.compare(table, [vd.concepts.CRAFT(1), PCA(1)]).refused
    assert "no images" in refused["craft"]


def test_superpixels_that_cannot_be_had_are_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "skimage.segmentation", None)
    found = vd.concepts.compare(image_task(), [vd.concepts.HUMCD(1), PCA(1)])
    assert list(found.judgements) == ["pca"]
    assert "scikit-image" in found.refused["hu-mcd"]


@pytest.mark.extras
def test_a_task_supplies_segments():
    pytest.importorskip("skimage")
    task = image_task()
    found = vd.concepts.compare(task, [vd.concepts.HUMCD(1, segments=4), vd.concepts.MCD(1)])
    assert not torch.equal(found.concepts["hu-mcd"].vectors, found.concepts["mcd"].vectors)


def test_rows_that_are_all_zero_are_flagged_not_an_error(head):
    values = draw(0, 60, 12).abs()
    values[head.outputs(values).argmax(1) == 1] = 0
    rows = Embeddings(values, head.outputs(draw(0, 60, 12).abs()), torch.arange(60))
    for method in (
        vd.concepts.CDISCO(2),
        vd.concepts.MCD(2),
        PCA(2),
        vd.concepts.NMF(2),
        vd.concepts.CRAFT(2),
    ):
        assert "zero" in method.fit(rows, head).flags[1]


# --- the verdict ----------------------------------------------------------------------------------------


def test_the_verdict_beats_controls_and_says_how_surely(head, train, test):
    good = Concepts.of(head.weight[:, None], torch.ones(4, 1), method="good")
    bad = vd.concepts.random_concepts(head, seed=9)
    found = vd.concepts.compare(
        train, {"good": good, "bad": replace(bad, method="bad")}, test=test, head=head
    )
    verdict = found.verdict
    assert verdict.best == "good"
    assert [p.method for p in verdict.places] == ["good", "bad"]
    assert verdict.places[0].trusted
    assert not verdict.places[1].trusted
    assert verdict.places[1].gap_to_best.sure
    assert found.controls["Perfect"].mae == 0
    assert set(verdict.places[0].control_gaps) == {"Rand-Imp", "Full-Rand", "Constant"}
    assert "Not better than a control: bad" in repr(verdict)
    only = vd.concepts.compare(train, {"bad": bad}, test=test, head=head)
    assert only.verdict.best is None
    assert "No concept method is surely better" in repr(only)


def test_what_shows_too_much_is_set_apart_whoever_stands_beside_it(head, train, test):
    """The largest K of any entry was the bound: CDISCO(12) let an MCD of 12 vectors win."""
    whole = Concepts.of(torch.eye(12), head.weight, method="everything")
    wide = vd.concepts.MCD(2, dimension_share=1e-6)
    few = vd.concepts.compare(train, [whole, wide, PCA(2)], test=test, head=head)
    more = vd.concepts.compare(train, [whole, wide, PCA(2), vd.concepts.CDISCO(12)], test=test, head=head)
    for found in (few, more):
        places = {p.method: p for p in found.verdict.places}
        assert "span all that is judged" in places["everything"].set_apart
        assert "where 2 concepts were requested" in places["mcd"].set_apart
        assert places["pca"].set_apart is None
        assert found.verdict.best not in ("everything", "mcd")
        assert "Set apart: " in repr(found.verdict)


@pytest.mark.parametrize("seed", range(20))
def test_no_verdict_changes_when_another_entry_joins(head, train, test, seed):
    """Random sets of methods and sizes; the one that joins may share a name with one that is there."""
    pick = np.random.default_rng(seed)
    kinds = (PCA, KMeans, vd.concepts.ICE, vd.concepts.CDISCO, vd.concepts.ICA, vd.concepts.MCD)
    chosen = [kinds[k](int(pick.integers(1, 9))) for k in pick.choice(6, 3, replace=False)]
    joins = kinds[pick.integers(6)](int(pick.integers(9, 13)))
    few, more = (
        vd.concepts.compare(train, entries, test=test, head=head) for entries in (chosen, [*chosen, joins])
    )
    labels = dict(zip(few.judgements, list(more.judgements), strict=False))
    before = {labels[p.method]: p for p in few.verdict.places}
    after = {p.method: p for p in more.verdict.places if p.method in before}
    for name, place in before.items():
        same = replace(after[name], method=place.method, gap_to_best=place.gap_to_best)
        assert same == place
    assert list(after) == list(before)
    if more.verdict.best in before:
        assert more.verdict.best == labels[few.verdict.best]


def test_an_entry_that_cannot_be_fitted_takes_no_other_with_it(head, train, test):
    """It ended the comparison, the verdict on all others with it; alone it is a mistake."""
    few = vd.concepts.compare(train, [PCA(2)], test=test, head=head)
    more = vd.concepts.compare(train, [PCA(2), vd.concepts.CDISCO(13)], test=test, head=head)
    assert more.verdict.places == few.verdict.places
    assert "13 concepts in 12 dimensions" in more.refused["cdisco"]
    with pytest.raises(InputError, match="13 concepts in 12 dimensions"):
        vd.concepts.compare(train, [vd.concepts.CDISCO(13)], test=test, head=head)


def test_outputs_without_concepts_are_counted_and_named(head, train, test):
    """They were averaged into the number of concepts, and the print did not mention them."""
    one = train.take(train.outputs.argmax(1) == 1)
    found = vd.concepts.compare(one, [PCA(2)], test=test, head=head)
    assert found.judgements["pca"].concepts == 2
    assert found.to_frame()["without_concepts"].tolist() == [3]
    assert found.verdict.places[0].bare == 3
    assert "without any concepts, whose surrogate is the bias: pca (of 3)" in repr(found.verdict)
    assert "pca: output 0 has no concepts: never predicted" in repr(found)
    assert "3 outputs without concepts" in repr(found.splits["pca"])
    curve = vd.concepts.parsimony("pca", one, test, head, counts=(1, 2))
    assert "outputs without concepts: 3 at 1, 3 at 2" in repr(curve)


def check_gap(between) -> None:
    small = draw(0, 1, 400).abs()
    sure = between(small + 0.2, small, Key(0))
    assert sure.mean == pytest.approx(0.2)
    assert 0.19 < sure.low <= sure.high < 0.21  # pairs: what samples share cancels
    none = between(small, small[:, torch.randperm(400, generator=torch.Generator().manual_seed(0))], Key(0))
    assert none.low < 0 < none.high
    spread = between(small + torch.tensor([[0.0], [0.4]]), small, Key(0))
    assert spread.low < 0.05
    assert spread.high > 0.35  # seeds are part of the doubt


def test_paired_intervals_cover_samples_and_seeds():
    check_gap(gap)
    with pytest.raises(AssertionError):
        check_gap(lambda larger, smaller, key: gap(larger.flip(-1), smaller, key))


def test_few_samples_decide_nothing(head, train, test):
    """One sample gave an interval of no width, and so a verdict that was sure."""
    small = draw(0, 1, 5).abs()
    assert not gap(small + 9, small, Key(0)).sure
    assert gap(torch.cat([small, small[:, :1]], 1) + 9, torch.cat([small, small[:, :1]], 1), Key(0)).sure
    found = vd.concepts.compare(train, [PCA(12)], test=test.take(slice(0, 1)), head=head)
    assert found.verdict.best is None
    assert "Fewer than 6 samples" in repr(found.verdict)
    assert "no interval" in str(found.verdict.places[0].error)


def test_outputs_that_do_not_vary_leave_nothing_to_explain(head, train):
    same = vd.concepts.Embeddings.of(train.values[:1].expand(20, -1), head)
    found = vd.concepts.compare(same, [PCA(2)], test=same, head=head)
    assert "do not vary" in repr(found.verdict)


def test_stability_tells_the_same_concepts_from_others(head, train):
    one = PCA(2).fit(train, head)
    order = torch.tensor([1, 0])
    turned = Concepts.of(-one.vectors[:, order], -one.importances[:, order])
    same = stability([one, turned])
    assert same.concepts == pytest.approx(1)
    assert same.importances == pytest.approx(1)
    other = stability([one, Concepts.of(draw(5, 4, 2, 12), draw(6, 4, 2))])
    assert other.concepts < 0.9
    assert stability([one]) is None
    with pytest.raises(InputError, match="fits of one method"):
        stability([one, PCA(2, shared=True).fit(train, head)])
    found = vd.concepts.compare(train, [KMeans(3), PCA(2)], seeds=3, test=train, head=head)
    assert found.stability["kmeans"].concepts <= 1
    assert found.stability["pca"] is None  # it draws nothing
    assert len(found.verdict.places) == 2


def test_parsimony_takes_a_task_and_a_name():
    task = image_task()
    assert len(vd.concepts.parsimony("pca", task, counts=(1, 2)).errors()) == 2
    curve = vd.concepts.parsimony(PCA(shared=True), task, counts=(1, 2, 6))
    errors = curve.errors()
    assert errors[0] > errors[1] > errors[2] == pytest.approx(0, abs=1e-6)
    assert len(curve.to_frame()) == 3
    assert "plateau" in repr(curve)
    with pytest.raises(InputError, match="counts must rise"):
        vd.concepts.parsimony(PCA(), task, counts=(3, 1))
    assert len(vd.concepts.parsimony(SAE(steps=3), task, counts=(1,)).errors()) == 1
    ready = vd.concepts.parsimony(Concepts.of(torch.ones(1, 6), torch.ones(3, 1)), task)
    assert (ready.counts, ready.suggested()) == ((1,), None)


def test_an_audit_judges_the_concepts_it_is_given():
    task = vd.tasks.load("digits")[:64]
    found = vd.audit(task, explainers=["saliency"], effort="glance", samples=24, concepts=["ica"])
    assert list(found.concepts.judgements) == ["ica"]
    assert found.to_json()["concepts"]["sentences"]
