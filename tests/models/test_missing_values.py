"""Missing values: kept where the model takes them, a value that a feature can have and be masked to."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

import veridical as vd
from veridical.errors import InputError
from veridical.perturb.fills import Mean, UniformNoise, extremes

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4))
Y = (X[:, 0] - X[:, 1] > 0).astype(int)
HOLES = X.copy()
HOLES[::5, 1] = np.nan
FRAME = pd.DataFrame(HOLES, columns=list("abcd"))
PIPELINE = make_pipeline(SimpleImputer(), LogisticRegression()).fit(FRAME, Y)


def by_hand(model, row: np.ndarray, mask: tuple[int, ...], reference: np.ndarray) -> float:
    """The mean margin of a row whose masked columns take the values of each reference row."""
    rows = np.repeat(row[None], len(reference), 0)
    rows[:, list(mask)] = reference[:, list(mask)]
    return float(model.decision_function(pd.DataFrame(rows, columns=list("abcd"))).mean())


def test_occlusion_takes_and_gives_missing_values() -> None:
    task = vd.Task(PIPELINE, FRAME[:8], train=FRAME)
    found = vd.explain("occlusion", task).values
    for n, i in itertools.product(range(8), range(4)):
        whole, gone = (by_hand(PIPELINE, HOLES[n], mask, HOLES) for mask in ((), (i,)))
        sign = 2 * int(task.targets[n]) - 1
        assert float(found[n, i]) == pytest.approx(sign * (whole - gone), abs=1e-7)


def test_a_model_that_takes_missing_values_is_explained_and_scored() -> None:
    model = HistGradientBoostingClassifier(max_iter=20).fit(FRAME, Y)
    task = vd.Task(model, FRAME[:12], train=FRAME)
    for metric in ("pixel_flipping", "faithfulness_correlation", "fid_plus", "rfid_minus"):
        assert bool(vd.score(metric, task, "exact_shapley").values.isfinite().all()), metric


def test_missing_is_not_changed_into_missing() -> None:
    """Removing a missing value by a missing one asks nothing new."""
    rows = FRAME[:4].assign(b=np.nan)
    task = vd.Task(PIPELINE, rows, train=rows[:1])
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
        vd.Task(PIPELINE, FRAME[:3].assign(a=[np.inf, 0, 0]))
    with pytest.raises(InputError, match="missing values, which a torch module cannot read"):
        vd.tasks.from_table(torch.nn.Linear(4, 2), FRAME)


def test_missing_categories_go_to_the_model_as_missing() -> None:
    seen: list[pd.DataFrame] = []

    def model(frame):
        seen.append(frame)
        return np.stack([frame["a"].fillna(0), -frame["a"].fillna(0)], 1)

    rows = FRAME[:4].assign(kind=pd.Categorical(["p", None, "q", "p"]))
    vd.explain("occlusion", vd.Task(model, rows, train=rows, head="multiclass"))
    assert any(frame["kind"].isna().any() for frame in seen)
    assert all(set(frame["kind"].dropna()) <= {"p", "q"} for frame in seen)
