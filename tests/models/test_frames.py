"""Data frames as people have them: they become tensors and come back, missing values and all."""

from __future__ import annotations

import datetime
import itertools
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.compose import make_column_transformer
from sklearn.decomposition import PCA
from sklearn.ensemble import (
    AdaBoostClassifier,
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.tree import DecisionTreeClassifier

import veridical as vd
from veridical.data import load_task
from veridical.errors import InputError, NotApplicableError
from veridical.models.dataframes import FrameCodec
from veridical.perturb.fills import Mean, UniformNoise, extremes


def frame() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "age": [20, 30, 40],
            "height": [1.5, 1.8, 1.7],
            "city": ["Rome", "Oslo", "Rome"],
            "smokes": [True, False, True],
            "grade": pd.Categorical(["b", "a", "b"], categories=["c", "b", "a"], ordered=True),
        }
    )


def test_encode_and_decode_are_inverse() -> None:
    codec = FrameCodec.of(frame())
    rows = codec.encode(frame())
    assert rows.dtype == torch.float64
    assert rows.shape == (3, 5)
    back = codec.decode(rows)
    assert list(back.columns) == list(frame().columns)
    for name in ("city", "smokes", "grade"):
        pd.testing.assert_series_equal(back[name], frame()[name])
    np.testing.assert_array_equal(back["age"], frame()["age"])


def test_categories_keep_their_order_in_every_chunk() -> None:
    codec = FrameCodec.of(frame())
    part = codec.decode(codec.encode(frame())[:1])
    assert list(part["grade"].cat.categories) == ["c", "b", "a"]
    assert part["grade"].cat.ordered


def test_categories_are_learned_from_inputs_and_train_together() -> None:
    train = frame().assign(city=["Bern", "Bern", "Oslo"])
    codec = FrameCodec.of(frame(), train)
    assert codec.categories[2] == ("Bern", "Oslo", "Rome")
    assert codec.decode(codec.encode(train))["city"].tolist() == ["Bern", "Bern", "Oslo"]


def test_what_is_missing_comes_back_missing() -> None:
    holes = frame().assign(city=["Rome", None, "Oslo"])
    codec = FrameCodec.of(frame())
    back = codec.decode(codec.encode(holes))
    assert back["city"].isna().tolist() == [False, True, False]
    assert back["city"].dropna().tolist() == ["Rome", "Oslo"]


def test_foreign_values_are_refused() -> None:
    codec = FrameCodec.of(frame())
    with pytest.raises(InputError, match="column 'city' has the level 'Atlantis', unknown before"):
        codec.encode(frame().assign(city=["Rome", "Atlantis", "Oslo"]))
    with pytest.raises(InputError, match="train has columns"):
        FrameCodec.of(frame(), frame().drop(columns="age"))


RNG = np.random.default_rng(0)
N = 60
FRAME = pd.DataFrame(RNG.normal(size=(N, 2)), columns=["a", "b"])
FRAME = FRAME.assign(c=RNG.choice(list("xyz"), N), t=RNG.random(N) > 0.5)
Y = (FRAME.a + (FRAME.c == "x") > 0.4).astype(int)
ENCODER = make_column_transformer((OneHotEncoder(), ["c", "t"]), remainder="passthrough")
PIPELINE = make_pipeline(ENCODER, LogisticRegression()).fit(FRAME, Y)
NUMBERS = FRAME[["a", "b", "t"]]


def shapley(model, rows, train, **settings) -> torch.Tensor:
    return vd.explain("exact_shapley", vd.Task(model, rows, train=train, **settings)).values


@pytest.mark.parametrize(
    "changed",
    [FRAME.convert_dtypes(), FRAME.assign(a=FRAME.a.astype(object)), FRAME[list("tcba")]],
    ids=["nullable", "objects", "other order"],
)
def test_the_same_values_in_other_columns_give_the_same_map(changed: pd.DataFrame) -> None:
    own = shapley(PIPELINE, FRAME[:4], FRAME)
    rows = FRAME[:4] if list(changed) != list(FRAME) else changed[:4]
    assert torch.allclose(shapley(PIPELINE, rows, changed), own)


def test_decimals_are_numbers_and_not_categories() -> None:
    money = FRAME[["a", "b"]].assign(a=[Decimal(str(round(v, 2))) for v in FRAME.a])
    task = vd.Task(Ridge().fit(money.astype(float), FRAME.a), money[:4], train=money)
    assert task.inputs[:, 0].tolist() == pytest.approx([float(v) for v in money.a[:4]])


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ([datetime.date(2020, 1, 1)] * N, "holds a date"),
        ([pd.Timestamp("2020-01-01")] * N, "holds a Timestamp"),
        ([pd.Timedelta("1D")] * N, "holds a Timedelta"),
        (pd.period_range("2020", periods=N, freq="D"), "holds a Period"),
        ([[1, 2]] * N, "holds a list"),
        ([{"k": 1}] * N, "holds a dict"),
        (FRAME.a + 1j, "holds a complex"),
    ],
)
def test_columns_that_are_neither_numbers_nor_categories(column, said: str) -> None:
    with pytest.raises(InputError, match=f"column 'a' {said}"):
        vd.Task(PIPELINE, FRAME.assign(a=column))


def test_columns_that_share_a_name() -> None:
    with pytest.raises(InputError, match="several columns are called 'a'"):
        vd.Task(PIPELINE, pd.concat([FRAME, FRAME], axis=1))


def test_one_hot_columns_of_a_frame_are_one_feature() -> None:
    wide = pd.get_dummies(FRAME[["a", "b", "c"]])
    model = HistGradientBoostingClassifier(max_iter=10).fit(wide, Y)
    space = vd.Space.column_groups(torch.tensor([0, 1, 2, 2, 2]), ["a", "b", "c"])
    task = vd.Task(model, wide[:6], train=wide, space=space)
    values = vd.explain("exact_shapley", task).values
    assert values.shape == (6, 3)
    whole = task.outputs.gather(1, task.targets[:, None])[:, 0]
    margins = torch.as_tensor(model.decision_function(wide)).mean()
    mean = margins * (2 * task.targets - 1)
    assert torch.allclose(values.sum(1).double(), (whole - mean).double(), atol=1e-6)


def test_one_of_several_quantities_is_explained_by_choice() -> None:
    both = np.c_[FRAME.a, 3 * FRAME.b]
    for model in (
        Ridge().fit(FRAME[["a", "b"]], both),
        RandomForestRegressor(5).fit(FRAME[["a", "b"]], both),
    ):
        task = vd.Task(model, FRAME[["a", "b"]][:5], train=FRAME[["a", "b"]], targets=1)
        maps = vd.explain("exact_shapley", task).values.abs().mean(0)
        assert maps[1] > 5 * maps[0]
        untold = vd.Task(model, FRAME[["a", "b"]][:5], train=FRAME[["a", "b"]])
        with pytest.raises(InputError, match=r"has 2 quantities.*targets=0"):
            vd.explain("exact_shapley", untold)
        assert vd.explain("exact_shapley", untold.with_targets(1)).values.shape == (5, 2)


@pytest.mark.parametrize(
    "model", [RandomForestClassifier(7, random_state=0), DecisionTreeClassifier(random_state=0)]
)
def test_tree_shap_reads_trees_over_a_frame(model) -> None:
    task = vd.Task(model.fit(NUMBERS, Y), NUMBERS[:8], train=NUMBERS)
    found = vd.explain("tree_shap", task)
    plain = model.fit(NUMBERS.to_numpy(float), Y)
    rows = vd.Task(plain, NUMBERS[:8].to_numpy(float), train=NUMBERS.to_numpy(float))
    assert torch.allclose(found.values, vd.explain("tree_shap", rows).values)
    assert found.provenance["scale"] == "output of the trees"
    assert found.provenance["completeness"]["largest_residual"] < 1e-9


ENCODED = make_column_transformer(
    (OneHotEncoder(handle_unknown="ignore", sparse_output=False), ["site"]),
    (SimpleImputer(), ["age", "dose"]),
)
SITES = pd.DataFrame(np.random.default_rng(4).normal(size=(80, 2)), columns=["age", "dose"]).assign(
    site=pd.Categorical(list("xyzw") * 20)
)
SITES.loc[::9, "dose"], SITES.loc[::7, "site"] = np.nan, None
SIZE = SITES.age + 2 * (SITES.site == "x") * SITES.dose.fillna(1)


@pytest.mark.parametrize(
    "model",
    [
        HistGradientBoostingRegressor(max_iter=10, categorical_features="from_dtype", min_samples_leaf=3),
        HistGradientBoostingClassifier(max_iter=10, categorical_features="from_dtype", min_samples_leaf=3),
        make_pipeline(ENCODED, GradientBoostingRegressor(n_estimators=10)),
        make_pipeline(ENCODED, GradientBoostingClassifier(n_estimators=10)),
        make_pipeline(ENCODED, ExtraTreesRegressor(10, random_state=0)),
    ],
    ids=lambda model: type(model[-1] if hasattr(model, "steps") else model).__name__,
)
def test_tree_shap_is_the_exact_shapley_value_with_categories_and_missing_values(model) -> None:
    truth = np.digitize(SIZE, [-0.5, 1]) if hasattr(model, "predict_proba") else SIZE
    task = vd.Task(model.fit(SITES, truth), SITES[:8], train=SITES)
    own, theirs = (vd.explain(name, task).values.double() for name in ("exact_shapley", "tree_shap"))
    assert torch.allclose(own, theirs, atol=1e-6)


def test_tree_shap_says_what_it_cannot_read() -> None:
    for model, said in (
        (make_pipeline(PCA(2), RandomForestClassifier(5)), "mixes columns of the table"),
        (AdaBoostClassifier(n_estimators=3), "do not sum to what the model says"),
        (LogisticRegression(), "finds no trees it can read in LogisticRegression"),
    ):
        with pytest.raises(NotApplicableError, match=said):
            vd.explain("tree_shap", vd.Task(model.fit(NUMBERS, Y), NUMBERS[:4], train=NUMBERS))


RNG_MISSING = np.random.default_rng(0)
X = RNG_MISSING.normal(size=(60, 4))
Y_MISSING = (X[:, 0] - X[:, 1] > 0).astype(int)
HOLES = X.copy()
HOLES[::5, 1] = np.nan
FRAME_MISSING = pd.DataFrame(HOLES, columns=list("abcd"))
PIPELINE_MISSING = make_pipeline(SimpleImputer(), LogisticRegression()).fit(FRAME_MISSING, Y_MISSING)


def by_hand(model, row: np.ndarray, mask: tuple[int, ...], reference: np.ndarray) -> float:
    """The mean margin of a row whose masked columns take the values of each reference row."""
    rows = np.repeat(row[None], len(reference), 0)
    rows[:, list(mask)] = reference[:, list(mask)]
    return float(model.decision_function(pd.DataFrame(rows, columns=list("abcd"))).mean())


def test_occlusion_takes_and_gives_missing_values() -> None:
    task = vd.Task(PIPELINE_MISSING, FRAME_MISSING[:8], train=FRAME_MISSING)
    found = vd.explain("occlusion", task).values
    for n, i in itertools.product(range(8), range(4)):
        whole, gone = (by_hand(PIPELINE_MISSING, HOLES[n], mask, HOLES) for mask in ((), (i,)))
        sign = 2 * int(task.targets[n]) - 1
        assert float(found[n, i]) == pytest.approx(sign * (whole - gone), abs=1e-7)


def test_a_model_that_takes_missing_values_is_explained_and_scored() -> None:
    model = HistGradientBoostingClassifier(max_iter=20).fit(FRAME_MISSING, Y_MISSING)
    task = vd.Task(model, FRAME_MISSING[:12], train=FRAME_MISSING)
    for metric in ("pixel_flipping", "faithfulness_correlation", "fid_plus", "rfid_minus"):
        assert bool(vd.score(metric, task, "exact_shapley").values.isfinite().all()), metric


def test_missing_is_not_changed_into_missing() -> None:
    """Removing a missing value by a missing one asks nothing new."""
    rows = FRAME_MISSING[:4].assign(b=np.nan)
    task = vd.Task(PIPELINE_MISSING, rows, train=rows[:1])
    map_of_b = torch.tensor([[0.0, 1.0, 0.0, 0.0]]).expand(4, 4)
    curve = vd.score("pixel_flipping", task, map_of_b.clone()).curve
    clean = task.probabilities(task.outputs).gather(1, task.targets[:, None])[:, 0]
    assert torch.allclose(curve.y[:, 1], clean.double())


def test_fills_leave_missing_rows_out() -> None:
    train = torch.tensor(HOLES)
    assert torch.allclose(Mean().prepare(train, None)[0, 0], torch.tensor(np.nanmean(HOLES, 0)))
    low, high = extremes(train)
    assert torch.equal(low, torch.tensor(np.nanmin(HOLES, 0)))
    assert torch.equal(high, torch.tensor(np.nanmax(HOLES, 0)))
    assert bool(UniformNoise().prepare(train, None).isfinite().all())
    assert bool(extremes(torch.full((3, 2), torch.nan))[0].isnan().all())


def test_a_torch_module_and_infinity_are_refused() -> None:
    with pytest.raises(InputError, match="NaN or infinite values in 12 rows"):
        vd.Task(torch.nn.Linear(4, 2), torch.tensor(HOLES).float())
    with pytest.raises(InputError, match="infinite values in 1 rows"):
        vd.Task(PIPELINE_MISSING, FRAME_MISSING[:3].assign(a=[np.inf, 0, 0]))
    with pytest.raises(InputError, match="missing values, which a torch module cannot read"):
        load_task(torch.nn.Linear(4, 2), FRAME_MISSING)


def test_missing_categories_go_to_the_model_as_missing() -> None:
    seen: list[pd.DataFrame] = []

    def model(frame):
        seen.append(frame)
        return np.stack([frame["a"].fillna(0), -frame["a"].fillna(0)], 1)

    rows = FRAME_MISSING[:4].assign(kind=pd.Categorical(["p", None, "q", "p"]))
    vd.explain("occlusion", vd.Task(model, rows, train=rows, head="multiclass"))
    assert any(frame["kind"].isna().any() for frame in seen)
    assert all(set(frame["kind"].dropna()) <= {"p", "q"} for frame in seen)
