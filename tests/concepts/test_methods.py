"""Concept methods: closed forms, slow rewrites, invariances, mutants, bad input."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.stats import qmc

from tests.concepts.conftest import draw
from tests.reference import surf as slow
from veridical.concepts import Dictionary, Embeddings, Head, ice_eval, judge, load_saelens
from veridical.concepts.methods import (
    CDISCO,
    CRAFT,
    ICA,
    ICE,
    NMF,
    PCA,
    SAE,
    KMeans,
)
from veridical.concepts.methods.craft import sobol_total
from veridical.concepts.methods.decompositions import kmeans, nmf
from veridical.concepts.solvers import nnls
from veridical.core.key import Key
from veridical.errors import FormatError, InputError, NotApplicableError

LINEAR = (PCA, KMeans, ICA)


@pytest.mark.parametrize("method", [PCA, KMeans, ICA, NMF, ICE])
def test_methods_with_the_heads_importances_score_as_ice_eval(method, head, train, test):
    concepts = method(3).fit(train, head)
    assert torch.allclose(
        judge(concepts, test, head).values["mae"], ice_eval(concepts, test, head).values["mae"], atol=1e-9
    )


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

    def check(method):
        vectors = torch.nn.functional.normalize(
            method(2).find(sources @ mixing, head.weight[0], Key(0)).vectors, dim=-1
        )
        assert float((vectors @ unit.T).abs().amax(0).min()) > 0.99

    check(ICA)
    with pytest.raises(AssertionError):
        check(PCA)


def test_kmeans_finds_separate_groups():
    centres = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]], dtype=torch.float64)
    rows = centres.repeat_interleave(20, 0) + draw(4, 60, 2) / 10
    found, owner = kmeans(rows, 3, Key(0))
    assert float(torch.cdist(centres, found).amin(1).max()) < 0.2
    for group in owner.reshape(3, 20):
        assert len(group.unique()) == 1


def test_nmf_recovers_an_exact_factorisation_and_never_climbs():
    weights, parts = draw(5, 40, 3).abs(), torch.zeros(3, 9, dtype=torch.float64)
    for k in range(3):
        parts[k, 3 * k : 3 * k + 3] = draw(6, 3, 3).abs()[k]
    rows = weights @ parts
    found_weights, found = nmf(rows, 3, 400)
    assert float((rows - found_weights @ found).norm() / rows.norm()) < 1e-3
    assert float((found_weights.min() >= 0) & (found.min() >= 0))
    noisy = rows + draw(7, 40, 9).abs()
    errors = [float((noisy - torch.matmul(*nmf(noisy, 3, steps))).norm()) for steps in (1, 3, 9, 27, 81)]
    assert all(b <= a + 1e-9 for a, b in pairwise(errors))


def test_nmf_is_as_good_as_scikit_learns():
    from sklearn import decomposition

    rows = draw(8, 60, 10).abs()
    for ridge in (0.0, 1e-2):
        ours, parts = nmf(rows, 4, 500, ridge)
        peer = decomposition.NMF(4, init="nndsvda", max_iter=2000, tol=1e-6, alpha_W=ridge)
        theirs = peer.fit_transform(rows.numpy())

        def objective(u, w, ridge=ridge):
            fit = float(((rows.numpy() - u @ w) ** 2).sum()) / 2
            return fit + ridge / 2 * (10 * float((u**2).sum()) + 60 * float((w**2).sum()))

        assert objective(ours.numpy(), parts.numpy()) <= 1.01 * objective(theirs, peer.components_)


def check_nnls(solve) -> None:
    vectors, h = draw(9, 2, 4, 7), draw(10, 15, 7)
    codes = solve(vectors @ vectors.mT, torch.einsum("gkd,nd->gnk", vectors, h))
    for g in range(2):
        for n in range(15):
            best = slow.nnls_by_enumeration(h[n].numpy(), vectors[g].numpy())
            assert np.allclose(codes[g, n].numpy(), best, atol=1e-8)


def test_nnls_is_exact_and_its_mutants_fail():
    check_nnls(nnls)
    with pytest.raises(AssertionError):
        check_nnls(lambda gram, seen: torch.linalg.solve(gram, seen.mT).mT.clamp(min=0))
    with pytest.raises(AssertionError):
        check_nnls(lambda gram, seen: seen.clamp(min=0) / gram.diagonal(dim1=-2, dim2=-1)[:, None])


def test_nnls_meets_the_optimality_conditions_on_hard_cases():
    vectors = draw(11, 3, 12, 6)
    vectors[0, 1] = vectors[0, 0]
    gram, seen = vectors @ vectors.mT, torch.einsum("gkd,nd->gnk", vectors, draw(12, 200, 6))
    codes = nnls(gram, seen)
    slope = seen - codes @ gram
    assert float(codes.min()) >= 0
    assert float(slope.max()) < 1e-6
    assert float((slope * codes).abs().max()) < 1e-6


def check_cdisco(fit, head, train) -> None:
    concepts = fit(train, head)
    owner = train.outputs.argmax(1)
    for output in range(4):
        vectors, scores = slow.cdisco(train.values[owner == output].numpy(), head.weight[output].numpy(), 3)
        assert np.allclose(concepts.vectors[output].numpy(), vectors, atol=1e-6)
        assert np.allclose(concepts.importances[output].numpy(), scores, atol=1e-6)


def test_cdisco_equals_its_slow_rewrite_and_a_mutant_fails(head, train):
    check_cdisco(CDISCO(3).fit, head, train)
    flipped = Head(-head.weight, head.bias)
    with pytest.raises(AssertionError):
        check_cdisco(lambda rows, _: CDISCO(3).fit(rows, flipped), head, train)


def check_sobol(index) -> None:
    pull = torch.tensor([[1.0, -2.0, 0.5], [3.0, 0.0, 1.0]], dtype=torch.float64)
    exact = pull.square() / pull.square().sum(-1, keepdim=True)
    assert torch.allclose(index(pull, 1024), exact, atol=0.02)
    points = torch.from_numpy(qmc.Halton(6, scramble=False).random(33)[1:])
    a, b = points[:, :3].tolist(), points[:, 3:].tolist()
    for row in pull:
        assert np.allclose(index(row[None], 32)[0], slow.jansen_total(row.tolist(), a, b), atol=1e-12)


def test_sobol_total_indices_on_a_linear_head():
    check_sobol(sobol_total)
    for mutant in (
        lambda pull, n: sobol_total(pull, n).sqrt(),
        lambda pull, n: pull.abs() / pull.abs().sum(-1, keepdim=True),
    ):
        with pytest.raises(AssertionError):
            check_sobol(mutant)
    assert sobol_total(torch.zeros(1, 3, dtype=torch.float64), 32).tolist() == [[0, 0, 0]]


def test_craft_weighs_by_variance(head, train):
    concepts = CRAFT(3, designs=1024).fit(train, head)
    rows = train.values[train.outputs.argmax(1) == 1]
    codes = concepts.project(rows)[:, 1]
    pull = codes * (concepts.vectors[1] @ head.weight[1])
    exact = (pull.square() / pull.square().sum(-1, keepdim=True)).mean(0)
    assert torch.allclose(concepts.importances[1], exact, atol=0.02)


def test_topk_keeps_k_and_codes_are_by_hand():
    encoder, bias = (
        torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [-1.0, 0.0]]),
        torch.tensor([0.0, 0.5, 0.0, 0.0]),
    )
    decoder, centre = torch.eye(2).repeat(2, 1), torch.tensor([1.0, 0.0])
    h = torch.tensor([[3.0, 1.0], [0.0, -9.0]])
    before = torch.tensor([[2.0, 1.5, 3.0, -2.0], [-1.0, -8.5, -10.0, 1.0]])
    parts = (encoder, bias, decoder, centre)
    relu = Dictionary(*parts).codes(h)[:, 0]
    assert torch.equal(relu, before.clamp(min=0))
    topk = Dictionary(*parts, "topk", 2).codes(h)[:, 0]
    assert torch.equal(topk, torch.tensor([[2.0, 0, 3.0, 0], [0, 0, 0, 1.0]]))
    jump = Dictionary(*parts, "jumprelu", None, torch.tensor([2.5, 1.0, 2.5, 2.0])).codes(h)[:, 0]
    assert torch.equal(jump, torch.tensor([[0.0, 1.5, 3.0, 0], [0, 0, 0, 0]]))


def test_unit_atoms_change_no_reconstruction(head):
    own = Dictionary(
        draw(1, 6, 12), draw(2, 6), 3 * draw(3, 6, 12), draw(4, 12), "jumprelu", None, draw(5, 6).abs()
    )
    unit, h = own.unit(), draw(6, 9, 12)
    assert torch.allclose(unit.decoder.norm(dim=1), torch.ones(6, dtype=torch.float64))
    assert torch.allclose(unit.codes(h)[:, 0] @ unit.decoder, own.codes(h)[:, 0] @ own.decoder)
    concepts = own.concepts(head)
    rebuilt = own.codes(h)[:, 0] @ own.decoder + own.decoder_bias
    assert torch.allclose(concepts.surrogate(h, head), head.outputs(rebuilt))


@pytest.mark.parametrize("activation", ["topk", "relu"])
def test_an_autoencoder_learns_a_planted_dictionary(activation):
    atoms = torch.nn.functional.normalize(draw(20, 8, 16), dim=-1)
    codes = torch.zeros(1500, 8, dtype=torch.float64)
    pick = torch.rand(1500, 8, generator=torch.Generator().manual_seed(1)).argsort(1)[:, :2]
    codes.scatter_(1, pick, 1 + draw(21, 1500, 2).abs())
    head = Head(draw(22, 4, 16), torch.zeros(4))
    rows = Embeddings.of(codes @ atoms, head)
    method = SAE(2, activation=activation, steps=600, batch=128, rate=5e-3)
    concepts = method.fit(rows, head)
    found = judge(concepts, rows, head)
    nothing = judge(concepts.with_importances(concepts.importances * 0), rows, head)
    assert found.mae < 0.3 * nothing.mae
    assert found.mae == pytest.approx(ice_eval(concepts, rows, head).mae, abs=1e-9)
    if activation == "topk":
        assert int((concepts.project(rows.values) > 0).sum(-1).max()) <= 2
        assert found.flops == 2 * 2 * 4


def write_saelens(folder, architecture, **config):
    from safetensors.torch import save_file

    parts = {
        "W_enc": draw(1, 12, 6).float(),
        "b_enc": draw(2, 6).float(),
        "W_dec": draw(3, 6, 12).float(),
        "b_dec": draw(4, 12).float(),
    }
    if architecture == "jumprelu":
        parts["threshold"] = draw(5, 6).abs().float()
    save_file({n: t.contiguous() for n, t in parts.items()}, folder / "sae_weights.safetensors")
    (folder / "cfg.json").write_text(
        json.dumps({"architecture": architecture, "d_in": 12, "d_sae": 6, **config})
    )
    return parts


@pytest.mark.parametrize("architecture", ["standard", "topk", "jumprelu"])
def test_dictionaries_in_saelens_layout_load(tmp_path, architecture, head):
    parts = write_saelens(tmp_path, architecture, k=2, apply_b_dec_to_input=architecture != "jumprelu")
    loaded = load_saelens(tmp_path)
    h = draw(7, 5, 12).float()
    shifted = h - parts["b_dec"] if architecture != "jumprelu" else h
    before = shifted @ parts["W_enc"] + parts["b_enc"]
    expected = {
        "standard": before.clamp(min=0),
        "topk": before.clamp(min=0) * (before >= before.topk(2, -1).values[:, -1:]),
        "jumprelu": before.clamp(min=0) * (before > parts.get("threshold", torch.zeros(6))),
    }[architecture]
    assert torch.allclose(loaded.codes(h)[:, 0], expected, atol=1e-5)
    assert loaded.concepts(head).importances.shape == (4, 6)


def test_broken_dictionaries_are_named(tmp_path):
    with pytest.raises(FormatError, match=r"holds no cfg\.json"):
        load_saelens(tmp_path)
    write_saelens(tmp_path, "temporal")
    with pytest.raises(FormatError, match="'temporal'"):
        load_saelens(tmp_path)
    write_saelens(tmp_path, "gated")
    with pytest.raises(FormatError, match="lacks b_gate, b_mag, r_mag"):
        load_saelens(tmp_path)
    write_saelens(tmp_path, "standard", activation_fn="gelu")
    with pytest.raises(FormatError, match="the activation is 'gelu'"):
        load_saelens(tmp_path)
    write_saelens(tmp_path, "standard", finetuning_scaling_factor=True)
    with pytest.raises(FormatError, match="finetuned"):
        load_saelens(tmp_path)
    write_saelens(tmp_path, "topk")
    with pytest.raises(FormatError, match="how many atoms"):
        load_saelens(tmp_path)
    write_saelens(tmp_path, "standard", normalize_activations="layer_norm")
    with pytest.raises(FormatError, match="layer_norm"):
        load_saelens(tmp_path)


@pytest.mark.parametrize("method", [NMF, ICE, CRAFT])
def test_negative_embeddings_name_the_methods_that_apply(method, head):
    rows = Embeddings.of(draw(1, 40, 12), head)
    with pytest.raises(NotApplicableError, match=r"negative values .* PCA, KMeans, ICA, CDISCO"):
        method(2).fit(rows, head)


def test_outputs_without_enough_samples_answer_their_bias(head, train, test):
    owner = train.outputs.argmax(1)
    few = train.take(
        torch.cat([(owner == 0).nonzero()[:2, 0], (owner == 1).nonzero()[:, 0], (owner == 3).nonzero()[:, 0]])
    )
    concepts = PCA(3).fit(few, head)
    assert concepts.flags == {0: "2 samples for 3 concepts", 2: "never predicted"}
    answers = concepts.surrogate(test.values, head)
    assert torch.equal(answers[:, 2], head.bias[2].expand(40))
    assert torch.equal(answers[:, 0], head.bias[0].expand(40))
    found = judge(concepts, test, head)
    assert "2 outputs without concepts" in repr(found)


def test_sizes_that_cannot_work_are_refused(head, train):
    with pytest.raises(InputError, match="13 concepts were asked for in 12 dimensions"):
        PCA(13).fit(train, head)
    with pytest.raises(InputError, match="n_concepts is a whole number from 1"):
        PCA(0)
    with pytest.raises(InputError, match="no output has the 5 samples"):
        PCA(5).fit(train.take(slice(0, 4)), head)
    with pytest.raises(InputError, match="fewer than the 5 concepts"):
        PCA(5, shared=True).fit(train.take(slice(0, 4)), head)
    with pytest.raises(InputError, match="loaded from its files"):
        SAE(2, activation="jumprelu")


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
