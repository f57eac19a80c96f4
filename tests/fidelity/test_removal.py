"""Removal: exact counts, uniform draws, one pass for all sizes and signs, and the flags of what cannot be."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import veridical as vd
from tests.reference import fidelity as reference
from veridical.core.key import Key
from veridical.errors import InputError
from veridical.fidelity import FFid, Fid, RFid
from veridical.fidelity.falls import measure
from veridical.fidelity.metrics import LEVELS, NO_SIZE, NOTHING_REMOVED, OTHER_CLASS, SAME_CLASS
from veridical.fidelity.removal import budget, explanation_sizes, removal_counts
from veridical.metrics.base import CONSTANT


def linear_task(samples: int = 6, features: int = 20, classes: int = 3, **extra) -> vd.Task:
    generator = torch.Generator().manual_seed(3)
    model = torch.nn.Linear(features, classes).double()
    with torch.no_grad():
        model.weight.copy_(torch.randn(classes, features, generator=generator))
        model.bias.zero_()
    x = torch.randn(samples, features, generator=generator, dtype=torch.float64)
    return vd.Task(model, x, fill="zero", **extra)


@given(
    st.integers(2, 400),
    st.integers(1, 99).map(lambda p: p / 100),
    st.sampled_from([0.1, 0.3, 0.5, 0.7, 1.0]),
    st.sampled_from([0.02, 0.05, 0.1, 0.29, 0.3, 1.0]),
)
def test_counts_are_those_of_exact_arithmetic(n: int, level: float, alpha: float, beta: float) -> None:
    many = torch.tensor([n])
    s = explanation_sizes(many, [level])
    assert int(s) == reference.size_of(n, level)
    cap = budget(many, beta)
    for place, sign in enumerate(("plus", "minus")):
        for limit, share in ((None, None), (cap, beta)):
            k = removal_counts(s, many, sign, alpha, limit)
            assert int(k) == reference.counts(n, int(s), alpha, share)[place]


def test_a_share_removes_at_least_one_feature_and_never_more_than_there_are() -> None:
    assert budget(torch.tensor([9, 3, 1, 0]), 0.1).tolist() == [1, 1, 1, 0]
    assert budget(torch.tensor([9, 100]), 0.0).tolist() == [0, 0]


@pytest.mark.parametrize("sign", ["plus", "minus"])
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, None), (0.5, None), (0.5, 0.25), (0.7, 0.1)])
def test_falls_equal_the_slow_rewrite(sign: str, alpha: float, beta: float | None) -> None:
    task = linear_task()
    maps = torch.randn(6, 20, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    explanation = vd.Explanation(maps, task.space, task.targets, task.ids)
    levels, draws, key = (0.1, 0.25, 0.5, 0.9), 4, Key(9)
    found = measure(
        task, explanation, task.targets, levels=levels, alpha=alpha, beta=beta, draws=draws, key=key
    )[sign]

    def predict(row: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return task.model(torch.tensor(row)).softmax(-1).numpy()

    for i in range(6):
        expected = reference.falls(
            predict, task.inputs[i].numpy(), int(task.targets[i]), maps[i].numpy(), levels, alpha, beta,
            draws, sign, key, int(task.draw_ids[i]),
        )  # fmt: skip
        np.testing.assert_allclose(found.indicator[i], expected[0], atol=1e-12)
        np.testing.assert_allclose(found.probability[i], expected[1], atol=2e-9)


N, SIZES, SIGNS = 20, torch.tensor([4, 10, 18]), ("plus", "minus")


class Counting(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(1, keepdim=True)


def test_counts_are_exact_and_those_of_bernoulli_on_average() -> None:
    task = vd.Task(Counting(), torch.ones(3, 40, dtype=torch.float64), head="regression", fill="zero")
    maps = torch.rand(3, 40)
    sizes = {"sizes": (0.25, 0.5), "draws": 400}
    exact = vd.score(RFid(**sizes), task, maps).curve.y.round(decimals=6)
    assert exact.tolist() == [[5.0, 10.0]] * 3
    drawn = vd.score(RFid(bernoulli=True, **sizes), task, maps).curve.y
    assert torch.allclose(drawn, exact, atol=0.5)
    assert bool((drawn != exact).any())
    rest = vd.score(RFid("minus", **sizes), task, maps).curve.y.round(decimals=6)
    assert rest.tolist() == [[15.0, 10.0]] * 3


@pytest.mark.parametrize(("metric", "rows"), [(Fid(), 19), (RFid(draws=3), 57), (RFid("minus", (0.5,)), 50)])
def test_cost_is_sizes_times_draws(metric: vd.Metric, rows: int) -> None:
    task = linear_task(features=14)
    assert vd.score(metric, task, torch.rand(6, 14, dtype=torch.float64)).cost.forward == 6 * rows


def test_fid_is_rfid_with_everything_removed() -> None:
    task = linear_task()
    explanation = vd.explain("gradient", task)
    for sign in ("plus", "minus"):
        plain = vd.score(Fid(sign), task, explanation)
        whole = vd.score(RFid(sign, alpha=1.0, draws=2), task, explanation)
        assert torch.equal(plain.values, whole.values)


def test_both_signs_may_remove_shares_of_their_own() -> None:
    task = linear_task()
    maps, key = vd.explain("gradient", task), Key(4)
    both = RFid(draws=3, alpha=0.9, alpha_minus=0.2).falls(task, maps, task.targets, SIGNS, key)
    for sign, alpha in (("plus", 0.9), ("minus", 0.2)):
        alone = RFid(sign, draws=3, alpha=alpha).falls(task, maps, task.targets, SIGNS, key)[sign]
        assert torch.equal(both[sign].counts, alone.counts)
        assert torch.allclose(both[sign].probability, alone.probability, atol=1e-8, equal_nan=True)


def test_labels_judge_where_there_are_labels_and_wrong_answers_can_score_below_zero() -> None:
    task = linear_task(samples=30)
    wrong = (task.predictions + 1) % 3
    labelled = linear_task(samples=30, labels=wrong)
    scores = vd.score(RFid(draws=5), labelled, "gradient")
    assert scores.values.max() <= 0
    assert scores.values.min() < 0
    assert scores.flagged[OTHER_CLASS] == 30
    again = vd.score(RFid(draws=5), labelled.with_targets(wrong), "gradient")
    assert OTHER_CLASS not in again.flags
    own = vd.score(RFid(draws=5, reference="prediction"), labelled, "gradient")
    assert own.values.min() >= 0
    assert own.provenance["right answer"] == "prediction"


def test_sizes_that_remove_nothing_are_left_out_and_flagged() -> None:
    task = linear_task()
    scores = vd.score(RFid(sizes=(0.05, 0.5), alpha=0.5, draws=3), task, "gradient")  # s = 1: floor(0.5) = 0
    assert scores.curve.y[:, 0].isnan().all()
    assert not scores.values.isnan().any()
    assert set(scores.flagged) - {SAME_CLASS} == {NOTHING_REMOVED}
    none = vd.score(RFid(sizes=(0.05,), alpha=0.5, draws=3), task, "gradient")
    assert none.values.isnan().all()
    assert none.flagged == {NO_SIZE: 6}


@pytest.mark.parametrize("n", [2, 3, 9, 12])
def test_few_features_have_every_size_once(n: int) -> None:
    task = linear_task(features=n)
    scores = vd.score(Fid("minus"), task, "gradient")
    assert scores.details["indicator"].shape == (6, n - 1)
    assert torch.allclose(scores.curve.x, torch.arange(1, n, dtype=torch.float64) / n)
    assert scores.cost.forward == 6 * (n - 1)
    for s in range(1, n):
        alone = vd.score(Fid("minus", sizes=(s / n,)), task, "gradient")
        assert torch.equal(alone.values, scores.curve.y[:, s - 1])
    assert vd.score(Fid(sizes=(0.5,)), task, "gradient").details["indicator"].shape == (6, 1)


def test_short_samples_among_long_ones_have_every_size_once() -> None:
    valid = torch.ones(6, 40, dtype=torch.bool)
    valid[1, 9:], valid[2, 4:], valid[3, 1:] = False, False, False
    task = linear_task(features=40, space=replace(vd.Space.columns(40), valid=valid))
    maps = torch.rand(6, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    scores = vd.score(Fid(variant="probability"), task, maps)
    there = ~scores.curve.y.isnan()
    assert there.sum(-1).tolist() == [19, 8, 3, 0, 19, 19]
    assert scores.flagged == {NO_SIZE: 1, CONSTANT: 1}  # one feature has no order
    for sample, n in ((1, 9), (2, 4)):
        alone = [
            vd.score(Fid(sizes=(s / n,), variant="probability"), task, maps).values[sample]
            for s in range(1, n)
        ]
        assert torch.allclose(torch.stack(alone), scores.curve.y[sample][there[sample]])
        levels = torch.tensor(LEVELS)[there[sample]]
        assert (levels - torch.arange(1, n) / n).abs().max() <= 0.025 + 1e-9


def test_multilabel_judges_the_explained_label_and_regression_its_error() -> None:
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    model = torch.nn.Linear(8, 3).double()
    labels = torch.ones(6, 3)
    task = vd.Task(
        model, x, head="multilabel", labels=labels, targets=torch.zeros(6, dtype=torch.int64), fill="zero"
    )
    falls = vd.score(Fid(sizes=(0.5,)), task, "gradient")
    clean = model(x).sigmoid()[:, 0] > 0.5
    assert bool((falls.values <= clean.double()).all())
    numbers = vd.Task(
        torch.nn.Linear(8, 1).double(), x, head="regression", labels=torch.zeros(6), fill="zero"
    )
    scores = vd.score(Fid(sizes=(0.5,), sign="minus"), numbers, "gradient")
    assert torch.equal(scores.details["indicator"], scores.details["probability"])


BAD = [
    (lambda: RFid(sizes=(0.0, 0.5)), "strictly between 0 and 1, got 0"),
    (lambda: RFid(sizes=(0.5, 1.0)), "strictly between 0 and 1, got 1"),
    (lambda: RFid(sizes=()), "at least one explanation size"),
    (lambda: RFid(sizes=(0.5, 0.2)), "must ascend"),
    (lambda: RFid(alpha=0.0), "alpha is a finite number above 0 and at most 1"),
    (lambda: RFid(draws=0), "draws is a whole number from 1"),
    (lambda: FFid(beta=1.5), "beta is a finite number above 0 and at most 1"),
    (lambda: RFid(sign="both"), "sign is one of 'plus', 'minus'"),
    (lambda: RFid(variant="logit"), "variant is"),
    (lambda: RFid(reference="truth"), "reference is"),
]


@pytest.mark.parametrize(("make", "message"), BAD)
def test_bad_settings_are_refused(make, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_labels_outside_the_head_are_refused() -> None:
    task = linear_task(labels=torch.tensor([0, 1, 2, 3, 1, 0]))
    with pytest.raises(ValueError, match=r"run from 0 to 3, the model has 3 outputs"):
        vd.score(RFid(draws=2), task, "gradient")
    with pytest.raises(ValueError, match="classes are one number per sample"):
        vd.score(RFid(draws=2), linear_task(labels=torch.zeros(6, 3), head="multiclass"), "gradient")
    with pytest.raises(ValueError, match="reference='label' needs labels"):
        vd.score(RFid(draws=2, reference="label"), linear_task(), "gradient")


def test_names_follow_the_sign_and_settings_survive_json() -> None:
    for cls, name in ((Fid, "fid"), (RFid, "rfid"), (FFid, "ffid")):
        for sign in ("plus", "minus"):
            metric = cls(sign=sign)
            assert metric.name == f"{name}_{sign}"
            assert cls.from_json(metric.to_json()) == metric
            assert vd.list_metrics()[metric.name]
    assert RFid("minus").better == "lower"


# --- theorem 1 ------------------------------------------------------------------------------------------


class Tiered(torch.nn.Module):
    """Answers the right class with probability g(features left in each tier)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left = torch.stack([x[:, :10].sum(1), x[:, 10:18].sum(1)], 1)
        p = (left[:, 0] ** 2 / 200 + left[:, 1] / 1000).clamp(1e-6, 1 - 1e-6)
        return torch.stack([torch.zeros_like(p), torch.logit(p)], 1)


@pytest.mark.parametrize(("beta", "alpha"), [(0.1, 0.5), (0.3, 0.5), (0.1, 1.0)])
def test_draws_approach_the_exact_expectation(beta: float, alpha: float) -> None:
    tiers, n = [10, 8, 22], 40
    task = vd.Task(Tiered(), torch.ones(1, n, dtype=torch.float64), targets=[1], fill="zero")
    maps = torch.tensor([[3.0] * 10 + [2.0] * 8 + [1.0] * 22], dtype=torch.float64)
    explanation = vd.Explanation(maps, task.space, task.targets, task.ids)
    levels = (0.1, 0.25, 0.4, 0.6, 0.9)
    found = measure(
        task,
        explanation,
        torch.tensor([1]),
        levels=levels,
        alpha=alpha,
        beta=beta,
        draws=4000,
        signs=("plus",),
    )["plus"]
    g = lambda left: Fraction(left[0] ** 2, 200) + Fraction(left[1], 1000)  # noqa: E731
    for place in range(len(levels)):
        s, k = int(found.sizes[0, place]), int(found.counts[0, place])
        exact = float(reference.expected_fall(tiers, g, s, k))
        assert found.probability[0, place] == pytest.approx(exact, abs=0.004)
