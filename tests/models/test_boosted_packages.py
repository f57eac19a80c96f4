"""CatBoost, LightGBM and XGBoost themselves, and frames of polars: what stand-ins cannot show."""

from __future__ import annotations

from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
import torch

import veridical as vd
from veridical.data import load_task
from veridical.errors import InputError
from veridical.explainers.trees import TreeShap

pytestmark = [pytest.mark.extras, pytest.mark.filterwarnings("ignore")]
catboost = pytest.importorskip("catboost")
lightgbm = pytest.importorskip("lightgbm")
xgboost = pytest.importorskip("xgboost")
polars = pytest.importorskip("polars")

RNG = np.random.default_rng(0)
NUMBERS = pd.DataFrame(RNG.normal(size=(100, 3)), columns=["age", "dose", "noise"])
TWO = (NUMBERS.age + 0.3 * NUMBERS.dose > 0).astype(int)
THREE = np.digitize(NUMBERS.age + 0.3 * NUMBERS.dose, [-0.5, 0.5])
AMOUNT = 2 * NUMBERS.age + NUMBERS.dose
ODD = NUMBERS.assign(site=pd.Categorical(RNG.choice(list("xyz"), 100))).mask(
    np.c_[np.zeros((100, 1), bool), RNG.random((100, 1)) < 0.1, np.zeros((100, 2), bool)]
)
ILL = np.where(ODD.age + (ODD.site == "x") > 0.3, "ill", "well")
QUIET: dict[str, dict[str, Any]] = {
    "catboost": {"iterations": 20, "depth": 3, "verbose": 0, "allow_writing_files": False, "thread_count": 1},
    "lightgbm": {"n_estimators": 20, "verbose": -1, "min_child_samples": 3, "n_jobs": 1},
    "xgboost": {"n_estimators": 20, "max_depth": 3, "n_jobs": 1},
}
CLASSES = {
    "catboost": (catboost.CatBoostClassifier, catboost.CatBoostRegressor),
    "lightgbm": (lightgbm.LGBMClassifier, lightgbm.LGBMRegressor),
    "xgboost": (xgboost.XGBClassifier, xgboost.XGBRegressor),
}


def fitted(package: str, rows: Any, truth: Any, regress: bool = False, **more: Any) -> Any:
    return CLASSES[package][regress](**QUIET[package], **more).fit(rows, truth)


def margins(model: Any, rows: Any) -> np.ndarray:
    told = {
        "catboost": {"prediction_type": "RawFormulaVal"},
        "lightgbm": {"raw_score": True},
        "xgboost": {"output_margin": True},
    }[type(model).__module__.partition(".")[0]]
    return np.asarray(model.predict(rows, **told))


@pytest.mark.parametrize("package", CLASSES)
def test_classifiers_are_explained_by_their_margin(package: str) -> None:
    two, three = fitted(package, NUMBERS, TWO), fitted(package, NUMBERS, THREE)
    task = vd.Task(two, NUMBERS[:9], train=NUMBERS, labels=TWO[:9])
    assert task.head == "binary"
    np.testing.assert_allclose(task.outputs[:, 1].numpy(), margins(two, NUMBERS[:9]), rtol=1e-6)
    chances = task.probabilities(task.outputs).numpy()
    np.testing.assert_allclose(chances, two.predict_proba(NUMBERS[:9]), atol=1e-5)
    many = vd.Task(three, NUMBERS[:9], train=NUMBERS)
    assert (many.head, many.n_outputs) == ("multiclass", 3)
    np.testing.assert_allclose(many.outputs.numpy(), margins(three, NUMBERS[:9]), rtol=1e-6)
    np.testing.assert_array_equal(many.predictions.numpy(), np.ravel(three.predict(NUMBERS[:9])))


@pytest.mark.parametrize("package", CLASSES)
def test_regressors_answer_what_they_predict(package: str) -> None:
    model = fitted(package, NUMBERS, AMOUNT, regress=True)
    task = vd.Task(model, NUMBERS[:9], train=NUMBERS, labels=AMOUNT[:9])
    assert (task.head, task.n_outputs) == ("regression", 1)
    np.testing.assert_allclose(task.outputs[:, 0].numpy(), model.predict(NUMBERS[:9]), rtol=1e-6)


@pytest.mark.parametrize("kind", ["two", "three", "amount"])
@pytest.mark.parametrize("package", CLASSES)
def test_tree_shap_is_exact_and_keeps_its_law(package: str, kind: str) -> None:
    truth = {"two": TWO, "three": THREE, "amount": AMOUNT}[kind]
    task = vd.Task(fitted(package, NUMBERS, truth, kind == "amount"), NUMBERS[:6], train=NUMBERS)
    assert "tree_shap" in vd.explainers.applicable(task)
    found, exact = vd.explain("tree_shap", task), vd.explain("exact_shapley", task)
    np.testing.assert_allclose(found.values.numpy(), exact.values.numpy(), atol=1e-5)
    assert found.provenance["completeness"]["largest_residual"] < 1e-4
    assert found.cost.forward == 0


@pytest.mark.parametrize("more", [{"booster": "dart", "rate_drop": 0.3}, {"early_stopping_rounds": 1}])
def test_tree_shap_reads_the_trees_that_xgboost_uses(more: dict[str, Any]) -> None:
    model = xgboost.XGBRegressor(n_estimators=20, max_depth=3, n_jobs=1, **more)
    model.fit(NUMBERS, AMOUNT, eval_set=[(NUMBERS[::-1], -AMOUNT)], verbose=False)
    task = vd.Task(model, NUMBERS[:6], train=NUMBERS)
    found, exact = (vd.explain(name, task).values.numpy() for name in ("tree_shap", "exact_shapley"))
    np.testing.assert_allclose(found, exact, atol=1e-5)


def test_what_is_not_read_rightly_is_refused() -> None:
    model = fitted("lightgbm", NUMBERS, TWO, boosting_type="rf", bagging_freq=1, bagging_fraction=0.6)
    reason = TreeShap().inapplicable_reason(vd.Task(model, NUMBERS[:6], train=NUMBERS))
    assert "do not sum to what the model says" in str(reason)


@pytest.mark.parametrize("package", CLASSES)
def test_categories_missing_values_and_names_of_classes(package: str) -> None:
    names = package == "catboost"
    more = {"catboost": {"cat_features": ["site"]}, "lightgbm": {}, "xgboost": {"enable_categorical": True}}
    model = fitted(package, ODD, ILL if names else (ILL == "well").astype(int), **more[package])
    task = vd.Task(model, ODD[:12], train=ODD, labels=ILL[:12] if names else None)
    assert task.space.names == ("age", "dose", "noise", "site")
    assert bool(task.inputs.isnan().any())
    np.testing.assert_allclose(task.outputs[:, 1].numpy(), margins(model, ODD[:12]), rtol=1e-6)
    size = vd.explain("exact_shapley", task).values.abs().mean(0)
    assert size.topk(2).indices.sort().values.tolist() == [0, 3]  # age and site decide
    found, exact = (vd.explain(name, task).values.numpy() for name in ("tree_shap", "exact_shapley"))
    np.testing.assert_allclose(found, exact, atol=1e-5)
    scores = (
        vd.score("pixel_flipping", task, "exact_shapley").mean(),
        vd.score("pixel_flipping", task, "random").mean(),
    )
    assert scores[0] < scores[1]


@pytest.mark.parametrize("kind", ["two", "three", "amount"])
@pytest.mark.parametrize("package", ["lightgbm", "xgboost"])
def test_boosters_are_their_estimators(package: str, kind: str, tmp_path) -> None:
    truth = {"two": TWO, "three": THREE, "amount": AMOUNT}[kind]
    model = fitted(package, NUMBERS, truth, kind == "amount")
    booster = model.booster_ if package == "lightgbm" else model.get_booster()
    own, theirs = (vd.Task(m, NUMBERS[:6], train=NUMBERS) for m in (booster, model))
    assert own.head == theirs.head
    np.testing.assert_allclose(own.outputs.numpy(), theirs.outputs.numpy(), rtol=1e-6)
    joblib.dump(booster, tmp_path / "booster.joblib")
    mixed = NUMBERS[["noise", "age", "dose"]].assign(spare=1.0)
    read = load_task(tmp_path / "booster.joblib", mixed, allow_code=True, samples=6)
    assert read.space.names == ("age", "dose", "noise")
    found, exact = (vd.explain("tree_shap", task).values.numpy() for task in (own, theirs))
    np.testing.assert_allclose(found, exact, atol=1e-6)


def test_catboost_without_a_kind_and_from_a_file(tmp_path) -> None:
    plain = catboost.CatBoost({**QUIET["catboost"], "loss_function": "Logloss"}).fit(NUMBERS, TWO)
    task = vd.Task(plain, NUMBERS[:6], train=NUMBERS)
    assert task.head == "binary"
    np.testing.assert_allclose(task.outputs[:, 1].numpy(), plain.predict(NUMBERS[:6]), rtol=1e-6)
    model = fitted("catboost", ODD.astype({"site": str}), ILL, cat_features=["site"])
    joblib.dump(model, tmp_path / "model.joblib")
    ODD.assign(label=ILL, spare=0).to_csv(tmp_path / "rows.csv", index=False)
    read = load_task(tmp_path / "model.joblib", tmp_path / "rows.csv", allow_code=True, labels="label")
    assert read.space.names == ("age", "dose", "noise", "site")
    assert read.labels is not None
    right = float((read.predictions == read.labels).double().mean())
    assert right > 0.9


PIPES = {
    "frame": lambda f: f,
    "lazy": lambda f: f.lazy(),
    "categorical": lambda f: f.with_columns(polars.col("site").cast(polars.Categorical)),
    "enum": lambda f: f.with_columns(polars.col("site").cast(polars.Enum(["x", "y", "z"]))),
}


@pytest.mark.parametrize("pipe", PIPES)
def test_a_polars_frame_is_explained_as_the_same_pandas_frame(pipe: str) -> None:
    rows = ODD.astype({"site": str})
    model = fitted("catboost", rows, ILL, cat_features=["site"])
    frame = polars.from_pandas(rows)
    given = PIPES[pipe](frame)
    task = vd.Task(
        model,
        PIPES[pipe](frame[:6]),
        train=(given, polars.Series(ILL.tolist())),
        labels=polars.Series(ILL[:6].tolist()),
    )
    own = vd.Task(model, rows[:6], train=(rows, ILL), labels=ILL[:6])
    assert task.labels is not None
    assert own.labels is not None
    assert torch.equal(task.labels, own.labels)
    values = [vd.explain("exact_shapley", one).values for one in (task, own)]
    torch.testing.assert_close(*values)
    maps = polars.DataFrame(values[0].numpy(), schema=["age", "dose", "noise", "site"])
    torch.testing.assert_close(vd.explain(maps, task).values, values[0])


def test_columns_of_polars_that_are_no_features_are_refused() -> None:
    frame = polars.from_pandas(NUMBERS[:6])
    model = fitted("catboost", NUMBERS, TWO)
    with pytest.raises(InputError, match="holds a"):
        vd.Task(model, frame.with_columns(age=polars.date(2020, 1, 1)))
    with pytest.raises(InputError, match="neither a number nor a category"):
        vd.Task(model, frame.with_columns(age=polars.lit([1, 2])))
    with pytest.raises(InputError, match="single row"):
        vd.Task(model, frame["age"])
    empty = frame.with_columns(dose=polars.when(polars.col("dose") > 0).then(polars.col("dose")))
    assert bool(vd.Task(model, empty).inputs[:, 1].isnan().any())
