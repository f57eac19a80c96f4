"""What four people typed first, as they typed it: it works, or the message says what to type instead."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import veridical as vd

RNG = np.random.default_rng(0)
IMAGES = torch.rand(24, 3, 32, 32, generator=torch.Generator().manual_seed(0))
CLASSES = torch.arange(24) % 5


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(64, 5)
    return nn.Sequential(*layers).eval()


@pytest.mark.extras
@pytest.mark.filterwarnings("ignore")
def test_the_bank_audits_tree_shap_on_a_booster_with_categories() -> None:
    lightgbm, shap = pytest.importorskip("lightgbm"), pytest.importorskip("shap")
    job = pd.Categorical(RNG.choice(["clerk", "driver", "nurse"], 300))
    X = pd.DataFrame({"income": RNG.lognormal(10, 1, 300), "debt": RNG.random(300), "job": job})
    for column in "abcd":
        X[column] = RNG.normal(size=300)
    X.loc[RNG.random(300) < 0.1, "debt"] = np.nan
    y = np.where(2 * X.debt.fillna(0.5) + (X.job == "driver") > 1.2, "default", "paid")
    tr, te = X[:240], X[240:]

    m = lightgbm.LGBMClassifier(n_estimators=30, verbose=-1).fit(tr, y[:240])
    others = [clone(m).fit(tr, RNG.permutation(y[:240])) for _ in range(2)]
    task = vd.Task(m, te, labels=y[240:], train=tr)
    X.describe(include="all")  # reading the data is no change of the model
    methods = {"tree shap": shap.TreeExplainer(m), "tree_shap": "tree_shap", "occlusion": "occlusion"}
    audit = vd.audit(task, explainers=methods, others=others, effort="quick")

    words = {place.explainer: place.status for place in audit.ranking}
    assert words["tree shap"] in ("trusted", "not decided")
    assert words["tree_shap"] in ("trusted", "not decided")
    assert not audit.evaluation.failures


def test_finished_arrays_go_into_a_table() -> None:
    task = vd.Task(network(), IMAGES, labels=CLASSES)
    made = vd.explain("input_x_gradient", task)
    table = vd.evaluate(task, {"array": made.maps().numpy(), "made": made}, ["pixel_flipping", "sparseness"])
    assert not table.failures
    assert table.scores["array", "pixel_flipping"].mean() == table.scores["made", "pixel_flipping"].mean()


def test_loaders_and_data_sets_are_inputs() -> None:
    data = TensorDataset(IMAGES, CLASSES)
    for given in (DataLoader(data, batch_size=7), data):
        task = vd.Task(network(), given)
        assert torch.equal(task.inputs, IMAGES)
        assert torch.equal(task.labels, CLASSES)


@pytest.mark.parametrize(
    ("inputs", "more", "says"),
    [
        (IMAGES.permute(0, 2, 3, 1), {}, r"come last here: pass inputs.permute\(0, 3, 1, 2\)"),
        ((255 * IMAGES).byte(), {}, "inputs / 255"),
        (IMAGES, {"labels": nn.functional.one_hot(CLASSES)}, r"labels.argmax\(1\)"),
        (IMAGES, {"head": "multi_label"}, "'multilabel'"),
    ],
)
def test_a_mistake_says_what_to_type(inputs: torch.Tensor, more: dict[str, object], says: str) -> None:
    with pytest.raises(vd.errors.VeridicalError, match=says):
        vd.Task(network(), inputs, **more)


def test_several_ones_in_a_row_are_several_labels_and_said() -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        task = vd.Task(network(), IMAGES, labels=(IMAGES[:, 0, 0, :5] > 0.5).int())
    assert task.head == "multilabel"
    assert any("several ones stand in a row" in str(one.message) for one in said)


def test_a_function_of_another_shape_is_told_which_shape_shap_needs() -> None:
    task = vd.Task(network(), IMAGES[:2])
    with pytest.raises(vd.errors.VeridicalError, match="predict, background"):
        vd.explain(vd.explainers.from_shap(lambda model, inputs, targets: None), task)
