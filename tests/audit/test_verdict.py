"""Weights, the ranking and its words, on scores made by hand."""

from __future__ import annotations

import math

import pytest
import torch

from veridical.audit.checks import Check, Checks
from veridical.audit.sentences import joined, sentences
from veridical.audit.verdict import Judge, Verdict, decide
from veridical.errors import InputError
from veridical.values.scores import Direction, Scores

SAMPLES = 60


def scores(level: float, seed: int, direction: Direction = Direction.HIGHER, spread: float = 1.0) -> Scores:
    noise = torch.randn(SAMPLES, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    sign = 1.0 if direction is Direction.HIGHER else -1.0
    return Scores(sign * (level + spread * noise), direction, "m", torch.arange(SAMPLES))


def table(levels: dict[str, dict[str, float]], lower: tuple[str, ...] = ()) -> dict[tuple[str, str], Scores]:
    return {
        (who, what): scores(level, 100 * i + j, Direction.LOWER if what in lower else Direction.HIGHER)
        for i, (who, row) in enumerate(levels.items())
        for j, (what, level) in enumerate(row.items())
    }


def judge(metric: str, system: str = "GEF", **facts) -> Judge:
    return Judge(metric, system, system in ("GEF", "QGE", "F-Fidelity"), **facts)


CLEAR = {
    "good": {"gef": 3.0, "qge": 3.0},
    "fair": {"gef": 1.5, "qge": 1.5},
    "bad": {"gef": 0.0, "qge": 0.0},
    "random": {"gef": 0.0, "qge": 0.0},
}
TWO = (judge("gef", "GEF", reliability=0.8), judge("qge", "QGE", reliability=0.6))
NOTHING_WRONG = Checks((Check("accuracy", True, 0.9, "fine"),), 0.0, None)


def check_clear_order(verdict: Verdict) -> None:
    assert [p.explainer for p in verdict.ranking] == ["good", "fair", "bad"]
    assert verdict.best == "good"
    assert [p.trusted for p in verdict.ranking] == [True, True, False]
    assert verdict.controls[0].explainer == "random"
    assert verdict.kendall_w > 0.7


def test_a_clear_order_is_found():
    check_clear_order(decide(table(CLEAR), ["bad", "good", "fair"], ["random"], TWO))


def test_metrics_where_lower_is_better_are_turned():
    check_clear_order(decide(table(CLEAR, lower=("qge",)), ["bad", "good", "fair"], ["random"], TWO))


def test_a_flipped_sign_is_caught():
    flipped = {cell: Scores(-s.values, s.direction, "m", s.ids) for cell, s in table(CLEAR).items()}
    with pytest.raises(AssertionError):
        check_clear_order(decide(flipped, ["bad", "good", "fair"], ["random"], TWO))


def test_every_system_has_one_voice_shared_by_reliability():
    levels = {who: {"gef": 0.0, "a": 0.0, "b": 0.0} for who in ("x", "y")}
    judges = (
        judge("gef", "GEF", reliability=0.6),
        judge("a", "QGE", reliability=0.6),
        judge("b", "QGE", reliability=0.2),
    )
    heard = {j.metric: j.weight for j in decide(table(levels), ["x", "y"], [], judges).judges}
    assert heard["gef"] == pytest.approx(heard["a"] + heard["b"])
    assert heard["a"] == pytest.approx(3 * heard["b"])
    assert sum(heard.values()) == pytest.approx(1.0)


def test_ignored_and_descriptive_metrics_have_no_voice():
    levels = {"x": {"gef": 3.0, "qge": -9.0, "sparse": -9.0}, "y": {"gef": 0.0, "qge": 9.0, "sparse": 9.0}}
    judges = (
        judge("gef", "GEF", reliability=0.7),
        judge("qge", "QGE", reliability=0.1, ignored="unreliable"),
        judge("sparse", "complexity", reliability=0.9),
    )
    verdict = decide(table(levels), ["x", "y"], [], judges)
    assert verdict.ranking[0].explainer == "x"
    assert [j.metric for j in verdict.deciding] == ["gef"]


def test_weights_decide_between_metrics_that_disagree():
    levels = {"x": {"gef": 3.0, "qge": 0.0}, "y": {"gef": 0.0, "qge": 3.0}}
    for first, second, winner in ((0.9, 0.3, "x"), (0.3, 0.9, "y")):
        judges = (judge("gef", "GEF", reliability=first), judge("qge", "QGE", reliability=second))
        assert decide(table(levels), ["x", "y"], [], judges).ranking[0].explainer == winner


def test_unmeasured_reliability_counts_as_moderate_and_is_said():
    verdict = decide(table(CLEAR), ["good", "fair", "bad"], ["random"], (judge("gef"), judge("qge", "QGE")))
    assert all(j.weight == pytest.approx(0.5) for j in verdict.judges)
    assert any("could not be measured" in s for s in sentences(verdict, NOTHING_WRONG))


def test_noise_everywhere_is_no_better_than_chance():
    levels = {who: {"gef": 0.0, "qge": 0.0} for who in ("a", "b", "c", "random", "sobel")}
    verdict = decide(table(levels), ["a", "b", "c"], ["random", "sobel"], TWO)
    assert verdict.best is None
    assert sentences(verdict, NOTHING_WRONG)[0].startswith("No method is better than chance on this model")


def test_false_alarms_are_rare():
    """Methods like the controls: at the 5% level with Holm, about one audit in twenty may call one better."""
    alarms = 0
    for seed in range(100):
        made = {
            (who, what): scores(0.0, 1000 * seed + 10 * i + j)
            for i, who in enumerate(("a", "b", "c", "random"))
            for j, what in enumerate(("gef", "qge"))
        }
        alarms += decide(made, ["a", "b", "c"], ["random"], TWO, resamples=10).best is not None
    assert alarms <= 11


def test_a_control_that_is_not_beaten_is_named():
    levels = {**CLEAR, "sobel": {"gef": 1.5, "qge": 1.5}}
    verdict = decide(table(levels), ["good", "fair", "bad"], ["random", "sobel"], TWO)
    text = " ".join(sentences(verdict, NOTHING_WRONG))
    assert "Use good" in text
    assert "Do not trust fair: on this model it does not beat sobel" in text
    assert "Do not trust bad: on this model it does not beat random and sobel" in text


def test_equals_are_named():
    levels = {**CLEAR, "as_good": {"gef": 3.0, "qge": 3.0}}
    verdict = decide(table(levels), ["good", "as_good", "bad"], ["random"], TWO)
    other = {"good": "as_good", "as_good": "good"}[verdict.best]
    assert verdict.equals_of(verdict.best) == (other,)
    assert f"{other} cannot be told apart from it" in " ".join(sentences(verdict, NOTHING_WRONG))


def test_no_metric_left_is_no_verdict():
    silent = tuple(judge(j.metric, j.system, ignored="it is deaf") for j in TWO)
    verdict = decide(table(CLEAR), ["good", "fair"], ["random"], silent)
    said = sentences(verdict, NOTHING_WRONG)
    assert verdict.best is None
    assert said[0].startswith("No verdict")
    assert "Ignore gef here: it is deaf." in said
    assert math.isnan(verdict.ranking[0].score)


def test_a_failed_cell_is_last_and_a_dead_metric_is_silent():
    made = table(CLEAR)
    del made["good", "gef"]
    dead = torch.full((SAMPLES,), torch.nan)
    for who in CLEAR:
        made[who, "dead"] = Scores(dead, Direction.HIGHER, "m", torch.arange(SAMPLES))
    verdict = decide(made, ["good", "fair", "bad"], ["random"], (*TWO, judge("dead", "QGE")))
    assert verdict.shares["good"]["gef"] == 0.0
    assert next(j for j in verdict.judges if j.metric == "dead").ignored == "it has no value in any sample"


def test_failed_checks_and_few_samples_are_said():
    failed = Checks((Check("accuracy", False, 0.1, "The model is not better than chance."),), 0.0, None)
    few = {cell: s.take(slice(0, 10)) for cell, s in table(CLEAR).items()}
    text = " ".join(sentences(decide(few, ["good", "fair"], ["random"], TWO), failed, ["A note."]))
    assert "The model is not better than chance." in text
    assert "only 10 samples" in text
    assert "A note." in text


def test_too_few_samples_are_no_verdict():
    """Three samples could not show that anything is better than chance, nor that nothing is."""
    few = {cell: s.take(slice(0, 3)) for cell, s in table(CLEAR).items()}
    verdict = decide(few, ["good", "fair", "bad"], ["random"], TWO)
    assert not verdict.testable
    assert verdict.best is None
    assert sentences(verdict, NOTHING_WRONG)[0].startswith("No verdict: 3 samples are too few")
    assert decide(table(CLEAR), ["good", "fair", "bad"], ["random"], TWO).testable


def test_without_controls_there_is_no_verdict():
    verdict = decide(table(CLEAR), ["good", "fair", "bad"], [], TWO)
    assert verdict.best is None
    assert verdict.ranking[0].explainer == "good"
    assert sentences(verdict, NOTHING_WRONG)[0].startswith("No verdict: no control was scored")


def test_a_control_that_fails_is_not_beaten_for_that():
    """The explainers are noise; the control fails under GEF, which weighs nearly everything."""
    made = table({who: {"gef": 0.0, "qge": 0.0} for who in ("a", "b", "random")})
    del made["random", "gef"]
    judges = (judge("gef", "GEF", reliability=0.9), judge("qge", "QGE", reliability=0.1))
    assert decide(made, ["a", "b"], ["random"], judges).best is None


def test_metrics_that_say_nothing_neither_agree_nor_disagree():
    flat = {
        (who, what): Scores(torch.ones(SAMPLES), Direction.HIGHER, "m", torch.arange(SAMPLES))
        for who in ("a", "b", "random")
        for what in ("gef", "qge")
    }
    verdict = decide(flat, ["a", "b"], ["random"], TWO)
    assert verdict.best is None
    assert math.isnan(verdict.kendall_w)
    assert "nan" not in " ".join(sentences(verdict, NOTHING_WRONG))


def test_copies_of_the_best_share_its_chance():
    made = table(CLEAR)
    for copy in ("copy", "again"):
        made |= {(copy, what): made["good", what] for what in ("gef", "qge")}
    verdict = decide(made, ["good", "copy", "again", "bad"], ["random"], TWO)
    chance = {p.explainer: p.p_best for p in verdict.ranking}
    assert all(chance[who] == pytest.approx(1 / 3, abs=1e-6) for who in ("good", "copy", "again"))
    assert set(verdict.equals_of("good")) == {"copy", "again"}


def test_a_name_for_two_is_refused():
    with pytest.raises(InputError, match="name of its own"):
        decide(table(CLEAR), ["good", "random"], ["random"], TWO)


def test_the_level_is_the_one_asked_for():
    verdict = decide(table(CLEAR), ["good", "fair"], ["random"], TWO, level=0.8)
    assert "80% interval" in sentences(verdict, NOTHING_WRONG)[0]


def test_names_join():
    assert [joined(n) for n in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == ["", "a", "a and b", "a, b and c"]
