"""The verdict from scores alone: who is trusted, in which group, and what company changes."""

from __future__ import annotations

import math

import pytest
import torch

from veridical.auditing.evidence import ALPHA, HERE, THERE, Entry, Grid, Rules, SampleScores
from veridical.auditing.sentences import sentences
from veridical.auditing.verdict import Field, MetricRole, decide

GRID = Grid(1e-5, 0.1)
METRICS = [
    MetricRole("rfid", "removal", True, 0.7, 0.6, 0.8),
    MetricRole("qge", "removal", True, 0.7, 0.6, 0.8),
]


def drawn(seed, samples, mean=0.0, metrics=2):
    generator = torch.Generator().manual_seed(seed)
    table = mean + torch.randn(metrics, samples, generator=generator, dtype=torch.float64)
    return SampleScores(table, torch.zeros(samples, dtype=torch.bool))


def won(share, samples):
    """Units of the randomisation: a share of every ten samples is won."""
    units = (torch.arange(samples) % 10 < 10 * share).double()
    return tuple(units for _ in (*HERE, *THERE))


def rules(samples=64, criteria=("removal",), admissible=(0, 1), seed=0):
    controls = {
        "random": [drawn(1000 + 10 * seed + i, samples) for i in range(4)],
        "input_magnitude": [drawn(2000 + seed, samples, 0.3)],
    }
    return Rules(criteria, GRID, admissible, controls, {})


def field(means, samples=64, criteria=("removal",), fits=0.95, seed=0, **more):
    entries = {
        name: Entry(
            name,
            drawn(10 * seed + i, samples, mean),
            randomisation=won(fits, min(24, samples)) if "randomisation" in criteria else (),
        )
        for i, (name, mean) in enumerate(means.items())
    }
    rows = {name: 10 * (i + 1) for i, name in enumerate(means)}
    return Field(entries, rules(samples, criteria, seed=seed), rows, **more)


class Nothing:
    failed = ()


def said(verdict, **skipped):
    return sentences(verdict, Nothing(), skipped)


def test_good_methods_are_trusted_and_chance_is_not():
    found = decide(field({"good": 3.0, "noise": 0.0, "bad": -2.0}), METRICS)
    assert [(p.explainer, p.trusted) for p in found.ranking] == [
        ("good", True),
        ("noise", False),
        ("bad", False),
    ]
    assert found.best == "good"
    assert found["noise"].status == "not trusted"
    text = " ".join(said(found))
    assert "Do not trust" in text
    assert "no better than" in text
    assert found["good"].score > 0.9 > 0.6 > found["noise"].score


def test_a_ranking_prints_as_a_table():
    found = decide(field({"good": 3.0, "noise": 0.0}), METRICS)
    head, best, last = repr(found.ranking).splitlines()
    assert head.split() == ["explainer", "beats", "controls", "samples", "verdict"]
    assert best.startswith("good")
    assert best.endswith("trusted, group 1")
    assert last.endswith("not trusted")
    assert best.index("64  ") == last.index("64  ") == head.index("samples")
    assert found.ranking[0] is found.places[0]


def test_removal_and_randomisation_must_both_hold():
    """A map that moves with the model fits it and knows no feature; a template the other way round."""
    lines = ("removal", "randomisation")
    both = field({"true": 3.0, "moving": 0.0, "template": 3.0}, criteria=lines)
    both.entries["template"].__dict__["randomisation"] = won(0.5, 24)
    found = decide(both, METRICS)
    assert [p.explainer for p in found.ranking if p.trusted] == ["true"]
    text = " ".join(said(found))
    assert "Not decided for template: its map fits this model better than another in 58% of 24" in text


def test_equal_methods_are_one_group_and_the_cheapest_is_named():
    """Four methods equal up to rounding were given probabilities of being best."""
    base = drawn(5, 64, 3.0)
    noisy = {f"m{i}": Entry(f"m{i}", SampleScores(base.utility + 4e-7 * i, base.missing)) for i in range(4)}
    known = Field(noisy, rules(), {"m0": 40, "m1": 30, "m2": 10, "m3": 20})
    found = decide(known, METRICS)
    assert found.groups == (("m0", "m1", "m2", "m3"),)
    assert found.best == "m2"
    assert all(pair.rate == 0.5 for pair in found.pairs)
    assert "cannot be distinguished" in " ".join(said(found))


def test_who_is_alone_is_not_compared():
    one = decide(field({"only": 5.0}, samples=200), METRICS)
    assert one.best == "only"
    assert "only method tried" in " ".join(said(one))


def test_company_changes_nothing_of_a_method():
    """Scores, win rates and unadjusted p of the others stay when a method joins or leaves."""
    alone = decide(field({"a": 3.0, "b": 1.0}), METRICS)
    more = field({"a": 3.0, "b": 1.0, "c": 4.0, "d": -1.0})
    company = decide(more, METRICS)
    for who in ("a", "b"):
        one, other = alone[who], company[who]
        assert (one.score, one.low, one.high, one.p, one.tests) == (
            other.score, other.low, other.high, other.p, other.tests,
        )  # fmt: skip
        assert other.p_holm >= one.p_holm
    pair = {(p.a, p.b): p for p in company.pairs}["a", "b"]
    assert pair == alone.pairs[0]


def test_below_24_samples_there_is_no_verdict():
    found = decide(field({"good": 9.0}, samples=23), METRICS)
    assert found.best is None
    assert "too few" in found.why_none
    assert said(found)[0].startswith("No verdict: 23 samples")
    assert decide(field({"good": 9.0}, samples=24), METRICS).best == "good"


def test_without_an_admissible_metric_or_a_control_there_is_no_verdict():
    known = field({"good": 9.0})
    silent = Field(known.entries, rules(admissible=()), known.rows)
    found = decide(silent, [])
    assert found.best is None
    assert "no metric sees the damage" in found.why_none
    assert math.isnan(found["good"].score)
    alone = Field(known.entries, Rules(("removal",), GRID, (0, 1), {}, {}), known.rows)
    assert "no control" in decide(alone, METRICS).why_none


def test_a_failed_method_stays_in_the_ranking_and_counts_for_holm():
    known = field({"good": 3.0, "broken": 3.0})
    gone = known.entries["broken"].removal
    known.entries["broken"].__dict__["removal"] = SampleScores(
        gone.utility * math.nan, torch.ones_like(gone.missing)
    )
    known = Field(known.entries, known.rules, known.rows, dropped={"broken": "its map failed: no idea"})
    found = decide(known, METRICS)
    assert [p.explainer for p in found.ranking] == ["good", "broken"]
    assert found["broken"].status == "failed"
    assert found["good"].p_holm == pytest.approx(2 * found["good"].p)
    assert "No map of broken: its map failed: no idea." in said(found)


def test_an_absent_criterion_makes_trust_provisional():
    found = decide(field({"good": 3.0}, absent={"randomisation": "there are no weights"}), METRICS)
    assert found["good"].trusted
    assert found["good"].status == "provisional"
    assert said(found)[0].startswith("Use, provisionally, good")
    assert "there are no weights" in said(found)[1]


def test_nobody_trusted_is_said():
    found = decide(field({"a": 0.0, "b": 0.0}), METRICS)
    assert found.best is None
    assert said(found)[0].startswith("No method is trusted on this model")


def test_who_could_not_be_tried_is_named_at_once():
    found = decide(field({"good": 3.0}), METRICS)
    text = said(found, lime="one map asks 9 rows and does not fit the budget of 3 rows", gradcam="no layer")
    assert any(sentence.startswith("Not tried, for lack of budget: lime.") for sentence in text[:3])


@pytest.mark.parametrize("samples", [24, 64])
def test_noise_is_hardly_ever_trusted(samples):
    """Six methods as good as a control, 40 audits: any is trusted in one of twenty, about, at most."""
    false = 0
    for seed in range(40):
        found = decide(field({f"n{i}": 0.3 for i in range(6)}, samples=samples, seed=7 + 13 * seed), METRICS)
        false += any(place.trusted for place in found.ranking)
    assert false <= 5


def test_places_that_win_three_in_four_are_found_with_64_samples():
    found = [decide(field({"m": 1.7}, samples=64, seed=seed), METRICS)["m"].trusted for seed in range(20)]
    assert sum(found) >= 18
    assert ALPHA == 0.05


def test_too_few_samples_are_not_held_against_a_method():
    """A win rate of 70% in 24 samples shows nothing either way; 10% shows that the method fails."""
    known = field({"good": 3.0, "fair": 0.6, "bad": -3.0}, samples=24)
    found = decide(known, METRICS)
    assert {place.explainer: place.status for place in found.ranking} == {
        "good": "trusted", "fair": "not decided", "bad": "not trusted",
    }  # fmt: skip
    sentences = said(found)
    assert any(one.startswith("Not decided for fair: of 24 samples it wins ") for one in sentences)
    assert any(one.startswith("Do not trust bad: no better than noise") for one in sentences)


def test_nothing_is_to_be_used_only_if_everything_is_shown_to_fail():
    bad = decide(field({"a": -3.0, "b": -2.5}), METRICS)
    assert said(bad)[0].endswith("Do not use any of these explanations as evidence.")
    open_ones = decide(field({"a": -3.0, "b": 0.6}), METRICS)
    assert open_ones.best is None
    assert not any("Do not use any" in one for one in said(open_ones))
    assert said(open_ones)[0].endswith("b is not decided.")


def test_without_a_verdict_no_method_is_called_not_trusted():
    found = decide(field({"good": 9.0}, samples=23), METRICS)
    assert [place.status for place in found.ranking] == ["no verdict"]
