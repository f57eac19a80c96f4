"""Data frames as people have them: odd columns, nullable types, groups, several quantities, trees."""

from __future__ import annotations

import datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.compose import make_column_transformer
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

import veridical as vd
from veridical.errors import InputError, NotApplicableError

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


class PolarsFrame:
    """What is used of a polars frame: it comes from that package and gives itself to pandas."""

    __module__ = "polars.dataframe.frame"

    def __init__(self, frame: pd.DataFrame) -> None:
        self.frame = frame

    def to_pandas(self) -> pd.DataFrame:
        return self.frame


def test_a_polars_frame_is_the_pandas_frame_it_gives() -> None:
    own = shapley(PIPELINE, FRAME[:4], FRAME)
    assert torch.equal(shapley(PIPELINE, PolarsFrame(FRAME[:4]), PolarsFrame(FRAME)), own)
    task = vd.Task(PIPELINE, PolarsFrame(FRAME[:4]), train=FRAME)
    maps = pd.DataFrame(own.numpy(), columns=list("abct"))
    assert torch.equal(vd.explain(PolarsFrame(maps), task).values, own)


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
        ([datetime.date(2020, 1, 1)] * N, "holds times"),
        ([pd.Timestamp("2020-01-01")] * N, "holds times"),
        ([pd.Timedelta("1D")] * N, "holds times"),
        (pd.period_range("2020", periods=N, freq="D"), "holds times"),
        ([[1, 2]] * N, "holds a list"),
        ([{"k": 1}] * N, "holds a dict"),
        (FRAME.a + 1j, "holds complex"),
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
        with pytest.raises(InputError, match=r"answers 2 quantities.*targets=0"):
            vd.explain("exact_shapley", untold)
        assert vd.explain("exact_shapley", untold.with_targets(1)).values.shape == (5, 2)


@pytest.mark.extras
@pytest.mark.parametrize(
    "model",
    [HistGradientBoostingClassifier(max_iter=10), RandomForestClassifier(7, random_state=0)],
    ids=["boosted", "forest"],
)
def test_tree_shap_reads_trees_over_a_frame(model) -> None:
    pytest.importorskip("shap")
    task = vd.Task(model.fit(NUMBERS, Y), NUMBERS[:8], train=NUMBERS)
    found = vd.explain("tree_shap", task)
    plain = model.fit(NUMBERS.to_numpy(float), Y)
    rows = vd.Task(plain, NUMBERS[:8].to_numpy(float), train=NUMBERS.to_numpy(float))
    assert torch.allclose(found.values, vd.explain("tree_shap", rows).values)


@pytest.mark.extras
def test_tree_shap_is_the_exact_shapley_value_of_a_margin() -> None:
    pytest.importorskip("shap")
    model = HistGradientBoostingRegressor(max_iter=10).fit(NUMBERS, FRAME.a)
    task = vd.Task(model, NUMBERS[:8], train=NUMBERS)
    own, theirs = (vd.explain(name, task).values.double() for name in ("exact_shapley", "tree_shap"))
    assert torch.allclose(own, theirs, atol=1e-5)
    with pytest.raises(NotApplicableError, match="plain columns"):
        vd.explain("tree_shap", vd.Task(PIPELINE, FRAME[:4], train=FRAME))
