"""The result: tables, comparisons, subsets of explainers, pictures, and what they are used for."""

from __future__ import annotations

import math

import matplotlib as mpl
import numpy as np
import pytest
import torch

from veridical.errors import InputError, UnknownNameError
from veridical.functional import holm
from veridical.meta import (
    MetaEvaluation,
    PredictionHolds,
    by_category,
    meta_evaluate,
    plot_settings,
    search_settings,
)
from veridical.meta.dependence import Dependence
from veridical.meta.perturbations import Amount
from veridical.meta.result import MetricScores
from veridical.metrics import FaithfulnessCorrelation
from veridical.values.scores import Direction

mpl.use("Agg")
SHAPE = (3, 4, 3, 50)  # iterations, draws, explainers, samples
NAMES = ("one", "two", "three")


def scored(label, category, slight, strong, seed, permuted=1.0, replaced=math.nan):
    """Scores that move by `slight` under NR and fall by `strong` under AR."""
    g = np.random.default_rng(seed)
    base = torch.from_numpy(g.normal(size=SHAPE[2:]))
    check = Dependence(permuted, replaced=replaced)
    made = MetricScores(label, category, Direction.HIGHER, checks=dict.fromkeys(NAMES, check))
    for test in ("ipt", "mpt"):
        made.unperturbed[test] = base
        made.perturbed[test, "nr"] = base + slight * torch.from_numpy(g.normal(size=SHAPE))
        made.perturbed[test, "ar"] = base - strong + 0.5 * torch.from_numpy(g.normal(size=SHAPE))
    return made


def result(*tables, seed=0):
    g = np.random.default_rng(seed)
    kept = {
        (test, mode): torch.from_numpy(g.random((*SHAPE[:2], SHAPE[3])) < share)
        for test in ("ipt", "mpt")
        for mode, share in (("nr", 0.9), ("ar", 0.6))
    }
    amounts = dict.fromkeys(kept, Amount(0.1, 0.1))
    return MetaEvaluation({b.metric: b for b in tables}, kept, NAMES, ("ipt", "mpt"), amounts, resamples=100)


@pytest.fixture(scope="module")
def made():
    return result(
        scored("steady", "good", 0.01, 1.0, 1),
        scored("shaky", "good", 2.0, 0.0, 2),
        scored("middling", "other", 0.3, 0.3, 3),
        scored("blind", "other", 0.0, 2.0, 4, permuted=0.0, replaced=0.0),
    )


def test_the_frame_holds_the_consistencies_their_spread_and_their_intervals(made):
    frame = made.to_frame()
    assert list(frame.columns[:8]) == "metric category test iac_nr iac_ar iec_nr iec_ar mc".split()
    assert len(frame) == 4 * 3
    vectors = made["steady", "mpt"].vectors
    row = frame.set_index(["metric", "test"]).loc[("steady", "mpt")]
    assert row["mc"] == pytest.approx(float(vectors.mean()))
    assert row["mc_std"] == pytest.approx(float(vectors.mean(1).std(correction=0)))
    assert row["iec_ar"] == pytest.approx(float(vectors[:, 3].mean()))
    assert row["kept_ar"] == pytest.approx(float(made.kept["mpt", "ar"].double().mean()))
    for name in ("iac_nr", "iac_ar", "iec_nr", "iec_ar", "mc"):
        assert (frame[f"{name}_low"] <= frame[name] + 1e-12).all()
        assert (frame[name] <= frame[f"{name}_high"] + 1e-12).all()
    assert 0.005 < row["mc_high"] - row["mc_low"] < 0.2
    mean = frame.set_index(["metric", "test"]).loc[("steady", "mean")]
    both = frame[(frame["metric"] == "steady") & frame["test"].isin(["ipt", "mpt"])]
    assert mean["mc"] == pytest.approx(both["mc"].mean())


def test_names_are_checked(made):
    with pytest.raises(UnknownNameError, match="steady"):
        made["stedy", "mpt"]
    with pytest.raises(UnknownNameError, match="mpt"):
        made["steady", "combined"]


def test_comparisons_are_paired_and_corrected(made):
    frame = made.compare()
    assert len(frame) == 6
    assert frame["p_holm"].tolist() == holm(torch.tensor(frame["p"].tolist(), dtype=torch.float64)).tolist()
    assert (frame["p_holm"] >= frame["p"]).all()
    pair = frame[(frame["a"] == "steady") & (frame["b"] == "shaky")].iloc[0]
    assert pair["difference"] > 0.2
    assert pair["p_holm"] < 0.01
    assert pair["low"] < pair["difference"] < pair["high"]
    twins = result(scored("a", "x", 0.3, 0.3, 5), scored("b", "x", 0.3, 0.3, 5))
    same = twins.compare().iloc[0]
    assert same["difference"] == 0
    assert same["p"] == 1
    with pytest.raises(InputError, match="two metrics"):
        result(scored("a", "x", 0.3, 0.3, 5)).compare()


def test_categories_are_won_by_two_deviations_and_never_blindly(made):
    table = by_category(made)
    assert table[table["wins"]]["metric"].tolist() == ["steady"]
    first = table[table["place"] == 1].set_index("category")["metric"]
    assert first["good"] == "steady"
    assert first["other"] == "blind"
    tied = by_category(result(scored("a", "x", 0.3, 0.3, 5), scored("b", "x", 0.3, 0.3, 6)))
    assert not tied["wins"].any()


def test_settings_are_searched_under_the_same_perturbations(table):
    options = {"tests": ("mpt",), "draws": 2, "iterations": 1, "ar": 2.0, "resamples": 0}
    tried = {"runs": [3, 30], "subset_size": [2]}
    best, found = search_settings(table, FaithfulnessCorrelation, tried, ["gradient", "occlusion"], **options)
    assert found.metrics == ["runs=3, subset_size=2", "runs=30, subset_size=2"]
    assert found.explanations == (1 + 4) * 2
    assert found.mc(f"runs={best.runs}, subset_size=2") == max(found.mc(m) for m in found.metrics)
    with pytest.raises(InputError, match="at least one setting"):
        search_settings(table, "sparseness", {}, ["gradient", "occlusion"])
    with pytest.raises(InputError, match="name or class"):
        search_settings(table, PredictionHolds(), {"runs": [1]}, ["gradient", "occlusion"])


def test_pictures_show_the_dependence_beside_mc(made):
    from matplotlib import pyplot

    ax = made.plot("blind")
    assert "permuted maps change 0%, blind" in ax.get_title()
    assert f"({made.mc('blind'):.3f})" in ax.get_title()
    grid = made.plot()
    assert grid.shape == (2, 2)
    assert "dependence" in made._repr_html_()
    settings = plot_settings(made)
    assert "blind (0%)" in [label.get_text() for label in settings.get_yticklabels()]
    assert "permuted maps change" in settings.get_title()
    pyplot.close("all")


def test_fine_tuned_metrics_keep_one_copy_under_the_same_relative_noise(tmp_path, monkeypatch):
    fidelity = pytest.importorskip("veridical.fidelity")
    from tests.meta.conftest import small_table
    from veridical.core.key import Key
    from veridical.meta.perturbations import perturbed
    from veridical.meta.scoring import with_finetuned

    monkeypatch.setenv("VERIDICAL_CACHE", str(tmp_path))
    rows = small_table(40).inputs
    task = small_table(24, train=(rows, torch.arange(40) % 3))
    artefact = fidelity.finetune(task, beta=0.5, epochs=1)
    metric = fidelity.FFid(finetuned=artefact, beta=0.5, draws=3)
    changed = perturbed(task, Amount(weights=0.5), Key(0))
    changed = with_finetuned([metric], task, changed, lambda t: perturbed(t, Amount(weights=0.5), Key(0)))
    judge = metric.model_task(changed)
    tuned = artefact.on(task).model.state_dict()
    moved = {name: value.clone() for name, value in changed.model.state_dict().items()}
    for name, noisy in judge.model.named_parameters():
        expected = tuned[name] * (moved[name] / task.model.state_dict()[name])
        there = task.model.state_dict()[name] != 0
        assert torch.allclose(noisy[there], expected[there])
    options = {"draws": 1, "iterations": 1, "ar": 2.0, "resamples": 0}
    found = meta_evaluate(task, [metric], ["gradient", "occlusion"], **options)
    assert not found.failures
    assert 0 <= float(found["ffid_plus", "mpt"].vector[0]) <= 1
