"""Training rows as features: subsets, outputs, scores and words against closed forms and planted truth."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LinearRegression, LogisticRegression
from torch import nn
from typer.testing import CliRunner

import veridical as vd
from tests.reference import training_rows as slow
from veridical.auditing import audit_training_rows
from veridical.cli.app import app
from veridical.data import Retraining
from veridical.errors import InputError, ShapeError
from veridical.explainers import training_rows as maps_of

RNG = np.random.default_rng(0)
X, TESTS = RNG.normal(size=(24, 4)), RNG.normal(size=(5, 4))
Y = X @ [1.0, -2.0, 0.5, 0.0] + RNG.normal(size=24)


ONES = np.ones((5, 24))


def line(rows: np.ndarray) -> LinearRegression:
    """Least squares through the origin."""
    return LinearRegression(fit_intercept=False).fit(X[rows], Y[rows])


@pytest.fixture(scope="module")
def least_squares() -> Retraining:
    return Retraining(line, (X, Y), TESTS)


def as_network() -> tuple[nn.Linear, maps_of.Rows, maps_of.Rows]:
    net = nn.Linear(4, 1, bias=False).double()
    net.weight.data = torch.tensor(line(np.arange(24)).coef_)[None]
    return net, (torch.tensor(X), torch.tensor(Y)), (torch.tensor(TESTS), torch.zeros(5).double())


def test_leaving_one_out_is_that_of_exact_least_squares(least_squares: Retraining) -> None:
    assert np.allclose(least_squares.leave_one_out(), slow.falls(X, Y, TESTS), atol=1e-9)


@pytest.mark.parametrize("method", ["influence", "trak"])
def test_influence_of_least_squares_is_its_closed_form(method: str) -> None:
    net, train, tests = as_network()
    found = (
        maps_of.influence(net, train, tests, damping=0.0, tolerance=1e-24)
        if method == "influence"
        else maps_of.trak(net, train, tests, dimensions=4)
    )
    assert np.allclose(found, slow.first_order(X, Y, TESTS), atol=1e-6)


def test_products_of_slopes_are_those_of_autograd() -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    x, t = torch.tensor(X).float(), torch.tensor(TESTS).float()
    train, tests = (x, torch.arange(24) % 3), (t, torch.arange(5) % 3)

    def slope(value: torch.Tensor) -> torch.Tensor:
        return torch.cat([part.flatten() for part in torch.autograd.grad(value, list(net.parameters()))])

    expected = torch.empty(5, 24)
    for i in range(5):
        p = net(t[i : i + 1]).softmax(1)[0, i % 3]
        own = slope((p / (1 - p)).log())
        for j in range(24):
            expected[i, j] = -own @ slope(nn.functional.cross_entropy(net(x[j : j + 1]), train[1][j : j + 1]))
    assert torch.allclose(maps_of.grad_dot(net, train, tests), expected, atol=1e-5)
    assert torch.allclose(maps_of.tracin([net, net], train, tests, [1.0, 2.0]), 3 * expected, atol=1e-4)
    assert maps_of.grad_cos(net, train, tests).abs().max() <= 1 + 1e-5
    assert (maps_of.grad_cos(net, train, tests).sign() == expected.sign()).all()


def test_influence_of_a_classifier_predicts_what_leaving_out_does() -> None:
    y = (Y > 0).astype(int)

    def fit(rows: np.ndarray) -> LogisticRegression:
        return LogisticRegression(C=1.0, fit_intercept=False, tol=1e-10).fit(X[rows], y[rows])

    rows = Retraining(fit, (X, y), (TESTS, np.ones(5, dtype=int)))
    net = nn.Linear(4, 2, bias=False).double()
    half = torch.tensor(fit(np.arange(24)).coef_[0]) / 2
    net.weight.data = torch.stack([-half, half])
    # the penalty of a margin m = 2 w: half its square, twice the square of w
    train, tests = (torch.tensor(X), torch.tensor(y)), (torch.tensor(TESTS), torch.ones(5).long())
    found = maps_of.influence(net, train, tests, 2 / 24)
    assert float(rows.leave_one_out_correlation(found).min()) > 0.98
    assert float(rows.lds(found, 40).min()) > 0.9


@pytest.mark.parametrize("scale", ["margin", "log_probability"])
def test_scales_are_those_of_probabilities(scale: str) -> None:
    y = np.arange(24) % 3
    fit = lambda rows: LogisticRegression().fit(X[rows], y[rows])  # noqa: E731
    rows = Retraining(fit, (X, y), (TESTS, np.zeros(5, dtype=int)), scale=scale)
    p = fit(np.arange(24)).predict_proba(TESTS)[:, 0]
    expected = np.log(p / (1 - p)) if scale == "margin" else np.log(p)
    assert np.allclose(rows.answers(torch.ones(1, 24))[0], expected, atol=1e-6)


def test_scores_are_the_slow_ones_and_those_of_the_task(least_squares: Retraining) -> None:
    relevance = torch.tensor(slow.first_order(X, Y, TESTS)) + maps_of.random_rows(5, 24)
    kept = least_squares.subsets(30)
    answers = least_squares.answers(kept)
    expected = slow.lds(relevance.numpy(), kept.numpy(), answers.numpy())
    assert np.allclose(least_squares.lds(relevance, 30), expected, atol=1e-9)
    assert (kept.sum(1) == 12).all()
    assert torch.equal(least_squares.subsets(10), kept[:10])
    task = least_squares.task()
    found = vd.score("faithfulness_correlation", task, relevance, subset_size=0.5, runs=60).values
    assert torch.allclose(found, least_squares.lds(relevance, 60), atol=0.25)
    exact = vd.score(
        "faithfulness_correlation", task, torch.tensor(slow.falls(X, Y, TESTS)), subset_size=1, runs=20
    )
    assert float(exact.values.min()) > 1 - 1e-9


def test_groups_are_left_out_whole(least_squares: Retraining) -> None:
    groups = np.arange(24) // 6
    rows = Retraining(line, (X, Y), TESTS, groups=groups)
    left = rows.leave_one_out()
    by_hand = least_squares.answers(torch.tensor(groups != 2)[None])
    every = least_squares.answers(torch.ones(1, 24))
    assert torch.allclose(left[:, 2], (every - by_hand)[0])
    assert torch.equal(rows.maps(torch.ones(5, 24)), torch.full((5, 4), 6.0).double())


def test_what_is_trained_is_kept_and_shared(tmp_path: Path) -> None:
    calls: list[int] = []

    def counted(rows: np.ndarray) -> LinearRegression:
        calls.append(len(rows))
        return line(rows)

    rows = Retraining(counted, (X, Y), TESTS, folder=tmp_path)
    first = rows.lds(np.ones((5, 24)) * np.arange(24), 12)
    rows.lds(np.ones((5, 24)) * np.arange(24)[::-1], 12)
    assert len(calls) == 13
    again = Retraining(counted, (X, Y), TESTS, folder=tmp_path)
    assert torch.equal(again.lds(np.ones((5, 24)) * np.arange(24), 12), first)
    assert len(calls) == 14
    other = Retraining(counted, (X, -Y), TESTS, folder=tmp_path)
    other.lds(np.ones((5, 24)) * np.arange(24), 12)
    assert len(calls) == 27


def test_other_frames_are_not_taken_for_those_of_the_folder(tmp_path: Path) -> None:
    def fit(rows: np.ndarray) -> LinearRegression:
        return LinearRegression().fit(pd.DataFrame(X[rows]), Y[rows])

    tests = (pd.DataFrame(TESTS), pd.DataFrame(-TESTS))
    first, other = (Retraining(fit, (pd.DataFrame(X), Y), one, folder=tmp_path) for one in tests)
    kept = first.subsets(2)
    assert not torch.equal(first.answers(kept), other.answers(kept))


def test_trainings_draw_their_own_numbers_and_leave_the_callers() -> None:
    def drawn(rows: np.ndarray) -> nn.Module:
        net = nn.Linear(4, 2)
        net.weight.data += float(np.random.rand())  # noqa: NPY002
        return net

    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    rows = Retraining(drawn, 24, TESTS.astype(np.float32), repeats=2)
    answers = rows.answers(rows.subsets(6))
    assert torch.equal(torch.rand(1), expected)
    with ThreadPoolExecutor(1) as pool:
        again = Retraining(drawn, 24, TESTS.astype(np.float32), repeats=2, executor=pool)
        assert torch.equal(again.answers(again.subsets(6)), answers)
    assert rows.trainings == 12


def planted() -> tuple[Retraining, dict[str, torch.Tensor], np.ndarray]:
    """Two clouds; some labels are wrong, and the first test has two copies among the rows."""
    rng = np.random.default_rng(1)
    y = np.arange(60) % 2
    x = rng.normal(size=(60, 3)) + 1.5 * y[:, None]
    targets = np.arange(12) % 2
    tests = rng.normal(size=(12, 3)) + 1.5 * targets[:, None]
    wrong = np.zeros(60, dtype=bool)
    wrong[rng.choice(60, 8, replace=False)] = True
    given = np.where(wrong, 1 - y, y)
    tests[0] = x[2]
    fit = lambda rows: LogisticRegression(C=0.5, fit_intercept=False).fit(x[rows], given[rows])  # noqa: E731
    half = torch.tensor(fit(np.arange(60)).coef_[0]) / 2
    net = nn.Linear(3, 2, bias=False).double()
    net.weight.data = torch.stack([-half, half])
    train, asked = (torch.tensor(x), torch.tensor(given)), (torch.tensor(tests), torch.tensor(targets))
    maps = {
        "influence": maps_of.influence(net, train, asked, 4 / 60),
        "negated": -maps_of.influence(net, train, asked, 4 / 60),
        "random": maps_of.random_rows(12, 60),
        "likeness": maps_of.similarity(train, asked),
    }
    return Retraining(fit, (x, given), (tests, targets)), maps, wrong


def test_words_follow_planted_truth() -> None:
    rows, maps, wrong = planted()
    found = audit_training_rows(rows, maps, 160)
    assert found["influence"].status == "trusted"
    assert found.best == "influence"
    assert found["negated"].status == "refuted"
    assert found["random"].status in ("refuted", "not decided")
    assert found["likeness"].status == "adds nothing shown"
    assert found["influence"].grade.low > 0.8
    assert abs(found["random"].grade.value) < 0.3
    assert abs(found["random"].lds) < 0.15
    assert "Use influence" in repr(found)
    kept = rows.subsets(160)
    units = slow.ordered(maps["influence"].numpy(), kept.numpy(), rows.answers(kept).numpy())
    assert found["influence"].ordered == pytest.approx(np.mean(units))
    frame = found.to_frame().set_index("explainer")
    assert frame.loc["influence", "reason"].startswith("It orders")
    few = audit_training_rows(rows, {"grad": maps["influence"] + 3 * maps["random"]}, 48, reference=0)
    assert few["grad"].status == "not decided"
    assert "retrainings would decide it" in repr(few)
    assert found.plot(test=0, count=4).patches

    assert rows.mislabelled_auc(maps["influence"], wrong) > 0.8
    assert abs(rows.mislabelled_auc(maps["random"], wrong) - 0.5) < 0.3
    # a copy of a test among the rows supports its answer most
    assert 2 in maps["influence"][0].topk(9).indices
    curve, chance = (rows.removal_curve(maps[name], (0.0, 0.2, 0.4)) for name in ("influence", "random"))
    assert curve[0] == chance[0]
    assert (curve[1:] < chance[1:]).all()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Retraining(line, 1, TESTS), "at least two training rows"),
        (lambda: Retraining(line, (X, Y), TESTS, groups=[0, 2] * 12), "without gaps"),
        (lambda: Retraining(line, (X, Y), TESTS).lds(np.ones((5, 23))), r"expected \(tests, training rows\)"),
        (lambda: Retraining(line, (X, Y), TESTS).answers(torch.zeros(1, 24)), "without any training row"),
        (
            lambda: Retraining(line, (X, Y), TESTS).mislabelled_auc(ONES, np.zeros(24)),
            "some, not all",
        ),
        (lambda: audit_training_rows(Retraining(line, (X, Y), TESTS), {}), "give maps="),
        (
            lambda: audit_training_rows(Retraining(line, (X, Y), TESTS), {"a": ONES * np.nan}),
            "NaN",
        ),
        (lambda: maps_of.grad_dot(nn.ReLU(), *as_network()[1:]), "no parameter"),
    ],
)
def test_mistakes_are_sentences(call: Callable[[], object], words: str) -> None:
    with pytest.raises((InputError, ShapeError), match=words):
        call()


def test_a_class_without_a_row_is_said() -> None:
    y = np.r_[np.zeros(12, int), np.ones(11, int), 2]
    fit = lambda rows: LogisticRegression().fit(X[rows], y[rows])  # noqa: E731
    rows = Retraining(fit, (X, y), TESTS)
    with pytest.raises(ShapeError, match="a class had no row left"):
        rows.leave_one_out()


RECIPE = """
import numpy as np
from sklearn.linear_model import LinearRegression
from veridical.data import Retraining
rng = np.random.default_rng(0)
x, tests = rng.normal(size=(24, 4)), rng.normal(size=(5, 4))
y = x @ [1.0, -2.0, 0.5, 0.0] + rng.normal(size=24)
def rows():
    return Retraining(lambda some: LinearRegression(fit_intercept=False).fit(x[some], y[some]), (x, y), tests)
"""


def test_the_command_writes_a_table_and_a_picture(tmp_path: Path) -> None:
    (tmp_path / "recipe.py").write_text(RECIPE)
    relevance = slow.first_order(X, Y, TESTS)
    np.savez(tmp_path / "maps.npz", influence=relevance, noise=RNG.normal(size=(5, 24)))
    call = ["training-rows", f"{tmp_path}/recipe.py:rows", f"{tmp_path}/maps.npz", "--out", f"{tmp_path}/out"]
    refused = CliRunner().invoke(app, call)
    assert isinstance(refused.exception, InputError)
    done = CliRunner().invoke(app, [*call, "--allow-code", "--retrainings", "100"])
    assert done.exit_code == 0
    assert "Use influence" in done.output
    written = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert written == ["training_rows.csv", "training_rows.png"]
