"""Audits with lies: jobs are kept and found again, rates are counted by method and clustered by family."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest

import veridical as vd
from replications.verdict import lies, worlds


def said(word: str, grade: float | None = None, rate: float = 0.9) -> dict[str, Any]:
    shown = None if grade is None else {"value": grade, "low": 0.0, "high": 1.0, "reference": ""}
    return {"word": word, "grade": shown, "vetoes": [], "tests": [["removal", "random", "shown", rate, 64]]}


def audit(family: str, kind: str = "lies", **methods: dict[str, Any]) -> dict[str, Any]:
    about = {"family": family, "seed": 0, "samples": 64, "kind": kind}
    return {**about, "leading": ["input_x_gradient"], "methods": methods}


def test_the_interval_is_that_of_the_binomial_where_families_agree() -> None:
    hits = {str(k): [True] * 3 + [False] * 7 for k in range(5)}
    found = lies.clustered(hits)
    exact = binomtest(15, 50).proportion_ci(0.95, "exact")
    assert (found.share, found.pairs) == (0.3, 50)
    assert (found.low, found.high) == pytest.approx((exact.low, exact.high))


def test_no_hits_and_all_hits_leave_room_for_others() -> None:
    none, every = lies.clustered({"a": [False] * 100}), lies.clustered({"a": [True] * 100})
    assert (none.low, every.high) == (0.0, 1.0)
    assert none.high == pytest.approx(1 - 0.025 ** (1 / 100))
    assert every.low == pytest.approx(0.025 ** (1 / 100))
    assert lies.clustered({}).pairs == 0


def test_the_interval_holds_the_share_of_families_that_differ() -> None:
    dice, held, plain = np.random.default_rng(0), [], []
    for _ in range(300):
        chances = dice.beta(2, 2, 12)
        hits = {str(k): (dice.random(20) < chance).tolist() for k, chance in enumerate(chances)}
        found = lies.clustered(hits)
        held.append(found.low <= 0.5 <= found.high)
        alone = binomtest(sum(map(sum, hits.values())), 240).proportion_ci(0.95)
        plain.append(alone.low <= 0.5 <= alone.high)
    assert np.mean(held) >= 0.92
    assert np.mean(plain) < 0.8  # as if all pairs were independent


def test_words_and_grades_are_counted() -> None:
    audits = [
        audit(
            "linear",
            constant=said("refuted"),
            naive_bayes=said("provisional"),
            scapegoat=said("not decided"),
            hidden_feature=said("trusted"),
            half_noise=said("trusted", 0.5),
            half_labels=said("trusted", 0.9),
            half_other_model=said("refuted", 0.9),
            lime=said("trusted", 0.95),
            occlusion=said("not decided", 0.8),
        ),
        audit("linear", "reference", lime=said("trusted", rate=0.85), occlusion=said("trusted", rate=0.7)),
        audit("wine", negated_in_a_fifth=said("trusted")),
        audit("mnist", hidden_feature=said("trusted")),
        {"family": "wine", "error": "broken"},
    ]
    found = lies.summary(audits)
    tuning = found["tuning"]["groups"]
    assert tuning["whole lies: trusted"]["share"] == 0.5
    assert tuning[lies.COLUMN]["share"] == 0.5
    assert tuning["half blends: not trusted, or graded below 70%"]["share"] == pytest.approx(2 / 3)
    assert tuning["honest methods: trusted"] == {
        **tuning["honest methods: trusted"],
        "share": 1.0,
        "pairs": 1,
    }
    assert found["honest"] == [["linear", "lime"]]
    assert found["tuning"]["methods"]["half_noise"]["grade"] == 0.5
    assert found["report"]["groups"]["in some samples: refuted or not decided"]["share"] == 0.0
    assert found["report"]["groups"][lies.PLACE]["pairs"] == 1
    assert found["report"]["audits"]["lies"] == 2
    assert len(found["errors"]) == 1


def test_families_are_apart() -> None:
    assert set(worlds.TUNING) < set(worlds.MAKERS)
    assert set(worlds.NEEDS) | set(worlds.ONE_MODEL) <= set(worlds.MAKERS)


def test_equal_methods_and_scaffolds_are_counted_once_an_audit() -> None:
    words = ("trusted", "trusted", "refuted"), ("trusted", "not decided"), ("refuted", "refuted")
    equals = [{f"equal {i}": said(word) for i, word in enumerate(some)} for some in words]
    right = {"integrated_gradients": said("provisional"), "input_x_gradient": said("provisional")}
    wrong = right | {"input_x_gradient": said("refuted")}
    audits = [
        *(audit("linear", "equal", **methods) for methods in equals),
        audit("linear", "scaffold", lime=said("not decided"), **right),
        audit("linear", "scaffold", lime=said("trusted"), **wrong),
    ]
    found = lies.summary(audits)["tuning"]["groups"]
    assert found["equal methods: opposite words"]["share"] == pytest.approx(1 / 3)
    same = "equal methods that win 80% or more, or half or less: the same word"
    assert found[same]["share"] == pytest.approx(1 / 3)
    unclear = [audit("linear", "equal", a=said("trusted", rate=0.7), b=said("not decided", rate=0.6))]
    assert lies.summary(unclear)["tuning"]["groups"][same]["pairs"] == 0
    assert found["scaffolds: LIME trusted"]["share"] == 0.5
    assert found["scaffolds: a method that reads the data refuted"]["share"] == 0.5
    assert found["scaffolds: such a method leads"]["share"] == 1.0


def test_a_scaffold_uses_one_column_of_its_data() -> None:
    task = lies.scaffolded(worlds.make("linear", 4, 8), 4)
    assert bool(task.model.on_data(task.inputs).all())
    used = vd.explain("input_x_gradient", task).values.abs().sum(0)
    assert int((used > 0).sum()) == 1
