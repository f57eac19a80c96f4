"""Objects of other packages where an explainer or a finished map is expected."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from captum.attr import IntegratedGradients
from sklearn.linear_model import LogisticRegression

import veridical as vd
from veridical.errors import InputError, NotApplicableError, VeridicalError

RNG = np.random.default_rng(0)
X = pd.DataFrame(RNG.normal(size=(40, 3)), columns=["a", "b", "c"])
MODEL = LogisticRegression().fit(X, X["a"] > X["b"])
NET = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


def table() -> vd.Task:
    return vd.Task(MODEL, X[:6], train=X)


def network() -> vd.Task:
    return vd.Task(NET, torch.tensor(X.to_numpy()[:6]).float(), train=torch.tensor(X.to_numpy()).float())


def test_a_captum_object_goes_straight_in() -> None:
    direct = vd.explain(IntegratedGradients(NET), network())
    by_adapter = vd.explain(vd.explainers.from_captum(IntegratedGradients), network())
    assert torch.equal(direct.values, by_adapter.values)


def test_a_captum_class_is_set_up_on_the_model_and_other_classes_are_told_from_objects() -> None:
    by_class = vd.explain(IntegratedGradients, network())
    assert torch.equal(by_class.values, vd.explain(IntegratedGradients(NET), network()).values)

    class Mine:
        def __call__(self, model, inputs, targets):
            return inputs

    assert vd.explain(Mine(), network()).values.shape == (6, 3)
    with pytest.raises(InputError, match=r"Mine is a class, and an explainer is an object of one: Mine\("):
        vd.explain(Mine, network())


@pytest.mark.parametrize("train", [None, X])
def test_columns_that_are_not_those_of_the_fit_are_named(train) -> None:
    few = X[:6]
    for given, said in [
        (few[["b", "a", "c"]], r"in another order; pass df\[\['a', 'b', 'c'\]\]"),
        (few.assign(d=0.0), r"not fitted on columns \['d'\]; leave them out"),
        (few[["a", "b"]], r"fitted on columns \['c'\], which are not there; the table has \['a', 'b'\]"),
    ]:
        rows = None if train is None else train.assign(d=0.0)[list(given.columns)]
        with pytest.raises(VeridicalError, match=said):
            vd.Task(MODEL, given, train=rows)


def test_a_data_frame_of_attributions_is_read_by_its_columns() -> None:
    values = pd.DataFrame(RNG.normal(size=(6, 3)), columns=["a", "b", "c"])
    task = table()
    plain = vd.score("pixel_flipping", task, values.to_numpy())
    for given in (values, values[["c", "a", "b"]]):
        assert torch.equal(vd.score("pixel_flipping", task, given).values, plain.values)
    with pytest.raises(InputError, match=r"same columns: \['c', 'd'\]"):
        vd.score("pixel_flipping", task, values.rename(columns={"c": "d"}))
    with pytest.raises(NotApplicableError, match="are not the task's features"):
        vd.score("pixel_flipping", task, values.rename(columns=str.upper))


def test_finished_maps_can_be_explained_too() -> None:
    assert vd.explain(np.ones((6, 3)), table()).values.shape == (6, 3)
    with pytest.raises(InputError, match="explains again under noise"):
        vd.score("gef", network(), np.ones((6, 3)))


class Told:
    def __init__(self, row):
        self.row = row

    def as_map(self):
        return {n: [(2, 0.5), (0, float(self.row[0]))] for n in (0, 1)}


Lime = type(
    "LimeTabularExplainer",
    (),
    {
        "__module__": "lime.lime_tabular",
        "explain_instance": lambda self, row, predict, labels, num_features: (predict(row[None]), Told(row))[
            1
        ],
    },
)


def test_a_lime_explainer_gives_its_weights_by_feature() -> None:
    found = vd.explain(Lime(), table()).values
    assert torch.allclose(found[:, 0], torch.tensor(X["a"].to_numpy()[:6]))
    assert found[:, 1].tolist() == [0.0] * 6
    assert found[:, 2].tolist() == [0.5] * 6


def test_a_bound_explainer_is_no_judge_of_moved_weights() -> None:
    with pytest.raises(NotApplicableError, match=r"bound to its own model.*from_shap"):
        vd.explain(Lime(), network().with_noise(0.1, vd.core.Key(0)))


@pytest.mark.extras
def test_objects_of_shap() -> None:
    shap = pytest.importorskip("shap")
    task = table()
    linear = shap.LinearExplainer(MODEL, X)
    found = vd.explain(linear, task)
    exact = vd.explain("exact_shapley", task)
    assert torch.allclose(found.values, exact.values, atol=1e-6)
    finished = vd.explain(linear(X[:6]), task)
    assert torch.allclose(finished.values, found.values)
    with pytest.raises(InputError, match="explains other rows"):
        vd.explain(linear(X[6:12]), task)
    gradients = shap.GradientExplainer(NET, network().train)
    both = [vd.explain(gradients, network(), seed=3).values for _ in range(2)]
    assert torch.equal(*both)


def test_names_of_classes_are_labels_and_targets() -> None:
    named = LogisticRegression().fit(X, np.where(X["a"] > X["b"], "yes", "no"))
    task = vd.Task(named, X[:4], labels=["no", "yes", "yes", "no"], targets=["yes"] * 4)
    assert task.labels.tolist() == [0, 1, 1, 0]
    assert task.targets.tolist() == [1] * 4
    with pytest.raises(InputError, match=r"\['perhaps'\] are not among the model's classes"):
        vd.Task(named, X[:1], labels=["perhaps"])
    with pytest.raises(InputError, match="the model does not name its classes"):
        vd.Task(NET, torch.zeros(1, 3), labels=["no"])


def test_a_sample_that_is_not_there_and_a_single_row() -> None:
    with pytest.raises(IndexError, match="sample 9 of a task of 6 samples"):
        table()[9]
    assert len(list(table())) == 6
    with pytest.raises(InputError, match=r"single row \(a Series\)"):
        vd.Task(MODEL, X.iloc[0])


def test_an_explainer_that_returns_nothing_is_told() -> None:
    def nothing(model, inputs, targets):
        return None

    with pytest.raises(InputError, match="the map of 'nothing' is None"):
        vd.explain(nothing, network())
