"""Methods beside other people's: scikit-learn, shap, and SAELens' documented forward passes."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
import torch

import veridical as vd
from tests.concepts.conftest import draw
from tests.reference.saelens import ARCHITECTURES
from veridical.concepts import Head, load_saelens
from veridical.concepts.methods.craft import sobol_total
from veridical.concepts.methods.cshap import Network
from veridical.concepts.methods.decompositions import kmeans, nmf, right_singular, spanned, unmixing
from veridical.core.key import Key


def planted(rows: int, width: int, parts: int) -> torch.Tensor:
    """Sparse non-negative parts and weights, with a little noise."""
    make = torch.Generator().manual_seed(parts)
    half = {"generator": make, "dtype": torch.float64}
    weights = torch.rand(rows, parts, **half) * (torch.rand(rows, parts, **half) < 0.3)
    found = torch.rand(parts, width, **half) * (torch.rand(parts, width, **half) < 0.3)
    return weights @ found + 1e-3 * torch.rand(rows, width, **half)


def real_rows() -> torch.Tensor:
    """Embeddings of one digit under the embedded CNN."""
    parts = vd.concepts.split(vd.tasks.load("digits"))
    train = parts.train()
    return train.values[train.outputs.argmax(1) == 3].double()


@pytest.mark.parametrize("count", [5, 10, 25])
@pytest.mark.parametrize("source", ["planted", "real"])
def test_nmf_leaves_no_more_than_scikit_learns(count, source):
    """From 8 parts on they died one after the other: 7 of 20 were left, and 360 times the residual."""
    from sklearn import decomposition

    rows = planted(120, 64, count) if source == "planted" else real_rows()
    weights, parts = nmf(rows, count)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peer = decomposition.NMF(count, init="nndsvda", max_iter=200)
        peer.fit(rows.numpy())
    ours = float((rows - weights @ parts).norm())
    assert ours <= 1.2 * peer.reconstruction_err_
    found = vd.concepts.NMF(count).find(rows, torch.ones(rows.shape[1]), Key(0)).vectors
    assert len(found) == count or torch.linalg.matrix_rank(rows) < count
    assert float(parts.min()) >= 0


@pytest.mark.parametrize("count", [5, 10, 25])
def test_kmeans_is_as_tight_as_scikit_learns(count):
    from sklearn import cluster

    rows = real_rows()
    centres, _ = kmeans(rows, count, Key(0))
    ours = float(torch.cdist(rows, centres).amin(1).square().sum())
    peer = cluster.KMeans(count, n_init=4, random_state=0).fit(rows.numpy())
    assert ours <= 1.05 * peer.inertia_


def contrast(sources: torch.Tensor) -> float:
    """What FastICA makes large: how far log cosh of each source is from that of a normal one."""
    gauss = 0.3745672075  # E[log cosh z]
    return float((torch.log(torch.cosh(sources)).mean(0) - gauss).square().sum())


@pytest.mark.parametrize("count", [5, 10, 25])
def test_ica_is_as_independent_as_scikit_learns_on_real_embeddings(count):
    """Sources of real rows are not unique, so what is compared is the contrast both methods make large."""
    from sklearn import decomposition

    rows = real_rows()
    rows = rows - rows.mean(0)
    values, vectors = spanned(rows, count)  # the rows of one digit have a rank of 21
    count = len(values)
    white = rows @ vectors.T / values * len(rows) ** 0.5
    ours = white @ unmixing(white, Key(0), 200).T
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peer = decomposition.FastICA(count, whiten=False, random_state=0, max_iter=200)
        theirs = torch.from_numpy(peer.fit_transform(white.numpy()))
    assert torch.allclose(ours.T @ ours / len(rows), torch.eye(count, dtype=torch.float64), atol=1e-6)
    assert contrast(ours) >= 0.9 * contrast(theirs)
    found = vd.concepts.ICA(count).find(real_rows(), torch.ones(rows.shape[1]), Key(0)).vectors
    span = torch.linalg.matrix_rank(torch.cat([found, vectors[:count]]), rtol=1e-8)
    assert int(span) == count


@pytest.mark.parametrize("count", [5, 10, 25])
def test_ica_finds_scikit_learns_sources(count):
    from sklearn import decomposition

    make = torch.Generator().manual_seed(0)
    sources = torch.rand(3000, count, generator=make, dtype=torch.float64) - 0.5
    white = (sources - sources.mean(0)) / sources.std(0)
    # a sample's sources correlate a little, which whitening takes out
    values, vectors = right_singular(white @ torch.linalg.qr(draw(1, count, count))[0])
    mixed = white @ torch.linalg.qr(draw(1, count, count))[0] @ vectors.T / values * 3000**0.5
    ours = mixed @ unmixing(mixed, Key(0), 400).T
    theirs = decomposition.FastICA(count, whiten=False, random_state=0, max_iter=400, tol=1e-6).fit_transform(
        mixed.numpy()
    )
    match = np.abs(np.corrcoef(ours.numpy().T, theirs.T)[:count, count:])
    assert np.allclose(np.sort(match, 1)[:, -1], 1, atol=1e-3)


@pytest.mark.extras
def test_shapley_values_of_concepts_are_shaps():
    shap = pytest.importorskip("shap")
    head = Head(draw(70, 3, 6), torch.zeros(3))
    vectors = torch.nn.functional.normalize(draw(71, 8, 6).float(), dim=-1)
    network = Network(8, head, 16, Key(3))
    own = draw(72, 30, 6)
    codes = own.float() @ vectors.T

    def completeness(kept):
        masked = codes[None] * torch.as_tensor(kept, dtype=torch.float32)[:, None]
        answers = network(masked.reshape(-1, 1, 8)).reshape(len(kept), len(own), -1)
        return (answers.argmax(-1) == 1).double().mean(1).numpy()

    peer = shap.KernelExplainer(completeness, np.zeros((1, 8)), silent=True)
    theirs = peer.shap_values(np.ones((1, 8)), nsamples=2**8, silent=True)[0]
    ours, _ = vd.concepts.ConceptSHAP(2, pool=8).shapley({1: own}, vectors, network, head, Key(0))
    assert np.allclose(ours[0], theirs, atol=1e-6)


def write(folder, architecture, config):
    from safetensors.torch import save_file

    parts = {
        "W_enc": draw(1, 12, 20),
        "b_enc": draw(2, 20),
        "W_dec": draw(3, 20, 12) * torch.linspace(0.2, 3, 20, dtype=torch.float64)[:, None],
        "b_dec": draw(4, 12),
    }
    extra = {
        "jumprelu": {"threshold": draw(5, 20).abs()},
        "gated": {"b_gate": draw(6, 20), "b_mag": draw(7, 20), "r_mag": draw(8, 20) / 3},
    }
    parts |= extra.get(architecture, {})
    if architecture == "gated":
        del parts["b_enc"]
    if architecture == "matching_pursuit":
        parts = {"W_dec": torch.nn.functional.normalize(parts["W_dec"], dim=-1), "b_dec": parts["b_dec"]}
    if config.get("finetuning_scaling_factor"):
        parts["finetuning_scaling_factor"] = 1 + draw(9, 20).abs()
    save_file({n: t.contiguous() for n, t in parts.items()}, folder / "sae_weights.safetensors")
    (folder / "cfg.json").write_text(json.dumps({"architecture": architecture, **config}))
    return {name: tensor.numpy() for name, tensor in parts.items()}


CONFIGS = [
    ("standard", {"activation_fn_kwargs": None}),
    ("standard", {"activation_fn": "tanh-relu", "finetuning_scaling_factor": True}),
    ("topk", {"k": 3, "rescale_acts_by_decoder_norm": True}),
    ("topk", {"k": 3, "rescale_acts_by_decoder_norm": False, "apply_b_dec_to_input": False}),
    ("abstopk", {"k": 4, "rescale_acts_by_decoder_norm": True}),
    ("jumprelu", {"apply_b_dec_to_input": False}),
    ("gated", {}),
    ("matching_pursuit", {"residual_threshold": 0.3}),
]


@pytest.mark.parametrize(("architecture", "config"), CONFIGS)
def test_saelens_dictionaries_do_what_saelens_does(tmp_path, architecture, config, head):
    """Current TopK files rescale by the decoder's norms; 98% of rows differed where that was ignored."""
    parts = write(tmp_path, architecture, config)
    loaded = load_saelens(tmp_path)
    rows = draw(10, 15, 12)
    codes = loaded.codes(rows)[:, 0]
    rebuilt = codes @ loaded.decoder + loaded.decoder_bias
    concepts = loaded.concepts(head)
    for n, x in enumerate(rows.numpy()):
        acts, again = ARCHITECTURES[architecture](x, parts, config)
        assert np.allclose(codes[n], acts, atol=1e-9)
        assert np.allclose(rebuilt[n], again, atol=1e-9)
        wanted = head.outputs(torch.from_numpy(again)[None])
        assert torch.allclose(concepts.surrogate(rows[n : n + 1], head), wanted, atol=1e-9)
    charged = vd.concepts.judge(concepts, vd.concepts.Embeddings.of(rows, head), head).concepts
    shown = config.get("k", float((codes != 0).double().sum(-1).mean()))
    assert charged == pytest.approx(shown)


def test_the_exact_index_is_what_many_designs_come_to():
    pull = draw(11, 4, 25)
    exact = sobol_total(pull)
    assert torch.allclose(exact.sum(-1), torch.ones(4, dtype=torch.float64))
    assert torch.allclose(exact, sobol_total(pull, 4096), atol=0.02)
    equal = sobol_total(torch.ones(1, 25, dtype=torch.float64))
    assert torch.allclose(equal, torch.full_like(equal, 1 / 25))  # 32 designs spread them 15-fold
