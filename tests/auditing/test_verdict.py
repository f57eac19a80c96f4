"""The verdict from scores alone: the word for every method, groups, and that company changes nothing."""

from __future__ import annotations

import math

import pytest
import torch

from veridical.auditing.evidence import (
    HERE,
    SHOWN,
    THERE,
    Entry,
    Grid,
    Question,
    Rules,
    SampleScores,
    Test,
    passed,
)
from veridical.auditing.grade import Grade
from veridical.auditing.hidden import Veto
from veridical.auditing.sentences import Circumstances, in_sentences
from veridical.auditing.verdict import Field, MetricRole, decide, equal_to
from veridical.functional import settle

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


def rules(samples=64, criteria=("removal",), admissible=(0, 1), seed=0, absent=None):
    controls = {
        "random": [drawn(1000 + 10 * seed + i, samples) for i in range(4)],
        "input_magnitude": [drawn(2000 + seed, samples, 0.3)],
    }
    return Rules(criteria, GRID, admissible, controls, {}, absent or {})


def field(means, samples=64, criteria=("removal", "randomisation"), fits=1.0, seed=0, absent=None, **more):
    """Methods whose scores have these means; `more` are what entries hold beside, by method."""
    entries = {
        name: Entry(
            name,
            drawn(10 * seed + i, samples, mean),
            **{
                "randomisation": won(fits, min(24, samples)) if "randomisation" in criteria else (),
                **more.get(name, {}),
            },
        )
        for i, (name, mean) in enumerate(means.items())
    }
    rows = {name: 10 * (i + 1) for i, name in enumerate(means)}
    return Field(entries, rules(samples, criteria, seed=seed, absent=absent), rows)


class Nothing:
    failed = checks = ()


def words(verdict, **known):
    return in_sentences(verdict, Circumstances(Nothing(), **known))


def said(verdict, **known):
    return [sentence for part in words(verdict, **known) for sentence in part]


def statuses(verdict):
    return {place.explainer: place.status for place in verdict.ranking}


def test_good_methods_are_trusted_and_chance_is_not():
    found = decide(field({"good": 3.0, "noise": 0.0, "bad": -2.0}), METRICS)
    assert statuses(found) == {"good": "trusted", "noise": "not decided", "bad": "refuted"}
    assert list(statuses(found)) == ["good", "noise", "bad"]
    assert found.best == "good"
    text = said(found)
    assert text[0].startswith("Use good: when features are removed it beats noise in ")
    assert text[0].endswith("Trusted means informative, not complete.")
    assert any(one.startswith("bad: refuted; when features are removed it wins only ") for one in text)
    assert found["good"].score > 0.9 > 0.6 > found["noise"].score


def test_a_ranking_prints_as_a_table():
    found = decide(field({"good": 3.0, "noise": 0.0}), METRICS)
    head, best, last = repr(found.ranking).splitlines()
    assert head.split() == ["explainer", "beats", "controls", "samples", "verdict"]
    assert best.startswith("good")
    assert best.endswith("trusted, group 1")
    assert last.endswith("not decided")
    assert best.index("64  ") == last.index("64  ") == head.index("samples")
    assert found.ranking[0] is found.places[0]


def test_removal_and_randomisation_must_both_hold():
    """A map that moves with the model fits it and knows no feature; a template the other way round."""
    both = field(
        {"true": 3.0, "moving": 0.0, "template": 3.0, "follows_not": 3.0},
        template={"randomisation": won(0.5, 24)},
        follows_not={"randomisation": (*won(1.0, 24)[:1], *won(0.0, 24)[1:])},
    )
    found = decide(both, METRICS)
    assert statuses(found) == {
        "true": "trusted", "moving": "not decided", "template": "not decided", "follows_not": "refuted",
    }  # fmt: skip
    text = " ".join(said(found))
    asked = 'open is "Does it explain this model and not another?"'
    assert f"template: not decided; {asked}: it fits this model better than another in 58%" in text
    assert "follows_not: refuted; its maps do not follow when the model is another one (0% won)." in text


def test_equal_methods_are_one_group_and_the_cheapest_is_named():
    """Four methods equal up to rounding were given probabilities of being best."""
    base = drawn(5, 64, 3.0)
    noisy = {
        f"m{i}": Entry(
            f"m{i}", SampleScores(base.utility + 4e-7 * i, base.missing), randomisation=won(1.0, 24)
        )
        for i in range(4)
    }
    known = Field(
        noisy, rules(criteria=("removal", "randomisation")), {"m0": 40, "m1": 30, "m2": 10, "m3": 20}
    )
    found = decide(known, METRICS)
    assert found.groups == (("m0", "m1", "m2", "m3"),)
    assert found.best == "m2"
    assert all(pair.rate == 0.5 for pair in found.pairs)
    text = said(found)
    assert text[0].startswith("Use m2, m3, m1 or m0: they lead, and these samples do not distinguish them.")
    assert text[1].startswith("m2 has the cheapest maps of these (10 rows each): when features are removed ")


def test_who_is_alone_is_not_compared():
    one = decide(field({"only": 5.0}, samples=200), METRICS)
    assert one.best == "only"
    assert "only method tried" in " ".join(said(one))


def test_company_changes_nothing_of_a_method():
    """Word, scores, win rates and tests of a method stay when others join or leave."""
    alone = decide(field({"a": 3.0, "b": 0.8}), METRICS)
    company = decide(field({"a": 3.0, "b": 0.8, "c": 4.0} | {f"d{i}": -1.0 for i in range(12)}), METRICS)
    for who in ("a", "b"):
        one, other = alone[who], company[who]
        assert (one.score, one.low, one.high, one.p, one.questions, one.status, one.needed) == (
            other.score, other.low, other.high, other.p, other.questions, other.status, other.needed,
        )  # fmt: skip
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


def test_a_failed_method_stays_in_the_ranking_undecided():
    known = field({"good": 3.0, "broken": 3.0}, broken={"unfinished": "its map failed: no idea"})
    gone = known.entries["broken"].removal
    known.entries["broken"].__dict__["removal"] = SampleScores(
        gone.utility * math.nan, torch.ones_like(gone.missing)
    )
    found = decide(known, METRICS)
    assert statuses(found) == {"good": "trusted", "broken": "not decided"}
    assert "broken: not decided; its map failed: no idea." in said(found)


@pytest.mark.parametrize("mean", [3.0, 0.0, -3.0])
@pytest.mark.parametrize(
    "why",
    [
        "the model randomisation test could not be run: it is bound to its own model",
        "rfid failed: out of ideas",
        "the budget of 1,000 rows was spent",
    ],
)
def test_what_could_not_be_tested_to_the_end_is_neither_refuted_nor_trusted(mean, why):
    found = decide(field({"one": mean}, one={"unfinished": why}), METRICS)
    assert statuses(found) == {"one": "not decided"}
    assert f"one: not decided; {why}." in said(found)
    assert not any("Do not use any" in one for one in said(found))


def test_an_absent_question_makes_trust_provisional():
    absent = {"randomisation": "there are no weights"}
    found = decide(field({"good": 3.0}, criteria=("removal",), absent=absent), METRICS)
    assert found["good"].trusted
    assert found["good"].status == "provisional"
    assert [(q.criterion, q.state) for q in found["good"].questions] == [
        ("removal", "shown"), ("randomisation", "not asked"),
    ]  # fmt: skip
    text = said(found)
    assert text[0].startswith("Use, provisionally, good")
    assert any("since there are no weights. So trust is provisional." in one for one in text)


def test_absent_truth_and_class_mates_are_no_absence():
    absent = {"truth": "nobody knows it", "sample": "only 3 samples share their class with another"}
    found = decide(field({"good": 3.0}, absent=absent), METRICS)
    assert statuses(found) == {"good": "trusted"}
    assert [q.reason for q in found["good"].questions if q.state == "not asked"] == [
        absent["sample"], absent["truth"],
    ]  # fmt: skip


def test_a_fault_refutes_and_its_absence_shows_nothing():
    found = decide(
        field(
            {"liar": 3.0, "good": 3.0, "open": 0.6},
            liar={"vetoes": (Veto("hidden", True, "it hides column 3", 20),)},
            good={"vetoes": (Veto("hidden", False, "nothing found in 20 samples", 20),)},
            open={"vetoes": (Veto("hidden", False, "nothing found in 20 samples", 20),)},
        ),
        METRICS,
    )
    assert statuses(found) == {"good": "trusted", "open": "not decided", "liar": "refuted"}
    assert "liar: refuted; it hides column 3." in said(found)


def test_the_grade_stands_beside_the_word():
    grade = Grade(0.83, 0.76, 0.89, "the best order of all")
    found = decide(field({"good": 3.0}, good={"grade": grade}), METRICS)
    line = next(one for one in said(found) if one.startswith("good:"))
    assert line.startswith("good: trusted, shows 83% [76%, 89%]; when ")
    means = (
        "Of what the best order of all gains over noise when features are removed, good shows 83% [76%, 89%]."
    )
    assert means in words(found).answer
    assert found.to_frame().loc[0, "grade: value"] == 0.83
    blank = decide(field({"good": 3.0}, good={"grade": grade._replace(value=math.nan)}), METRICS)
    assert any(one.startswith("good: trusted; when ") for one in said(blank))


def _of_units(units, controls=("random", "input_magnitude"), **more):
    """A method that wins these units against each control under a single metric."""
    draws, own = {}, torch.full((1, 64), 0.5, dtype=torch.float64)
    for name, each in zip(controls, units, strict=True):
        table = torch.where(each == 0.5, 0.5, torch.where(each > 0.5, 0.0, 1.0))[None].double()
        draws[name] = [SampleScores(table, torch.zeros(64, dtype=torch.bool))]
    known = Rules(("removal",), GRID, (0,), draws, {}, {"randomisation": "no weights"}, ("random",))
    entry = Entry("one", SampleScores(own, torch.zeros(64, dtype=torch.bool)), **more)
    return decide(Field({"one": entry}, known, {"one": 1}), METRICS[:1])


def test_who_beats_noise_and_equals_the_size_of_the_input_adds_nothing_shown():
    wins, ties = torch.ones(64), torch.full((64,), 0.5)
    found = _of_units([wins, ties])
    assert statuses(found) == {"one": "adds nothing shown"}
    assert found["one"].equal_to == ("input_magnitude",)
    line = next(one for one in said(found) if one.startswith("one:"))
    assert "it beats noise in 100% of samples, but the size of the input already explains this model" in line
    assert said(found)[0] == 'No method is trusted on this model: of 1 tried, 1 is "adds nothing shown".'
    assert statuses(_of_units([ties, ties])) == {"one": "not decided"}  # noise is not beaten
    assert statuses(_of_units([wins, wins])) == {"one": "provisional"}
    assert statuses(_of_units([wins, 1 - wins])) == {"one": "refuted"}
    broken = _of_units([wins, ties], unfinished="it failed")
    assert statuses(broken) == {"one": "not decided"}
    lies = _of_units([wins, ties], vetoes=(Veto("hidden", True, "it hides", 9),))
    assert statuses(lies) == {"one": "refuted"}


@pytest.mark.parametrize(
    ("low", "high", "equal"),
    [(0.35, 0.65, True), (0.34, 0.6, False), (0.4, 0.66, False), (0.5, 0.6, True)],
)
def test_equal_means_the_whole_interval_near_a_half(low, high, equal):
    tests = (
        Test("removal", "random", 0.9, 0.8, 1.0, 0.001, 64, "shown", 20),
        Test("removal", "sobel", 0.5, low, high, 1.0, 64),
    )
    assert equal_to([Question.of("removal", tests)], ("random",)) == (("sobel",) if equal else ())
    assert equal_to([Question.of("removal", tests)], ("random", "sobel")) == ()


def test_a_question_that_was_not_asked_neither_passes_nor_fails():
    shown, open_, fails = (Test("removal", "x", 0.5, 0.0, 1.0, 1.0, 9, state) for state in STATES)
    assert [Question.of("removal", [shown, one]).state for one in (shown, open_, fails)] == list(STATES)
    assert Question.of("removal", [open_, fails]).state == "fails"
    assert Question.of("removal", []).state == "open"
    absent = Question.of("truth", [], "nobody knows it")
    assert absent.state == "not asked"
    assert not passed([absent])
    assert passed([absent, Question.of("removal", [shown])])
    assert not passed([absent, Question.of("removal", [open_])])
    assert passed([Question.of("removal", [shown]), Question.of("sample", [open_])], but="sample")


STATES = ("shown", "open", "fails")


def test_nobody_trusted_is_said():
    found = decide(field({"a": 0.0, "b": 0.0}), METRICS)
    assert found.best is None
    assert said(found)[0] == 'No method is trusted on this model: of 2 tried, 2 are "not decided".'


def test_who_could_not_be_tried_is_named_in_the_first_paragraph():
    found = decide(field({"good": 3.0}), METRICS)
    skipped = {"lime": "one map asks 9 rows and does not fit the budget of 3 rows", "gradcam": "no layer"}
    text = words(found, skipped=skipped).answer
    assert any(sentence.startswith("Not tried, for lack of budget: lime.") for sentence in text)


def test_the_first_paragraph_says_on_what_it_rests():
    found = decide(field({"good": 3.0}), METRICS)
    text = words(found, given=1797, planned=200, ended="the next stage does not fit the budget").answer
    ended = "200 were planned, but the next stage does not fit the budget"
    assert f"Decided on 64 of 1,797 distinct samples; {ended}." in text
    assert "Labels were not given, so nobody knows how often the model is right." in text
    assert "Given the same row again, the model answers alike." in text
    assert "Decided on all 64 distinct samples." in words(found, given=64, planned=64).answer
    moving = words(found, moves="the model's outputs move by 3% of their size from call to call").answer
    assert any(one.startswith("Given the same row again, the model's outputs move by 3%") for one in moving)


def test_who_is_trusted_and_does_not_lead_is_said_to_win_so_much_against_the_leader():
    found = decide(field({"best": 6.0, "second": 2.5}), METRICS)
    assert found.leading == ("best",)
    line = next(one for one in said(found) if one.startswith("second:"))
    assert line.endswith(f"; it beats best in {found.share('second', 'best'):.0%} of samples.")


def test_of_regressions_and_outputs_no_class_is_spoken():
    known = field(
        {"good": 3.0}, criteria=("removal", "randomisation", "sample"), good={"sample": torch.ones(24)}
    )
    text = " ".join(said(decide(known, METRICS), head="regression"))
    assert "of 64 samples, it fits this model better than another in" in text
    assert "its map beats that of another sample in 100% of 24." in text
    assert "class" not in text


@pytest.mark.parametrize("samples", [24, 64])
def test_noise_is_hardly_ever_trusted(samples):
    """Six methods as good as a control, who fit the model: 240 of them, each trusted at most once in 100."""
    false = 0
    for seed in range(40):
        means = {f"n{i}": 0.3 for i in range(6)}
        found = decide(field(means, samples=samples, seed=7 + 13 * seed), METRICS)
        false += sum(place.trusted for place in found.ranking)
    assert false <= 5


def test_equal_methods_never_get_opposite_words():
    """Five methods equal by construction, of every quality: "trusted" never stands beside "refuted"."""
    for mean in (-1.0, 0.3, 0.8, 1.2, 2.0, 3.0):
        for seed in range(8):
            means = {f"m{i}": mean for i in range(5)}
            found = set(statuses(decide(field(means, seed=100 + 17 * seed), METRICS)).values())
            assert not {"trusted", "refuted"} <= found
            assert ("trusted" in found) <= (mean > 0.5)
            assert ("refuted" in found) <= (mean < 0.3)


@pytest.mark.parametrize(("samples", "won_share"), [(24, 0.86), (64, 0.74)])
def test_methods_that_win_so_often_are_found_four_times_in_five(samples, won_share):
    generator = torch.Generator().manual_seed(samples)
    units = (torch.rand(4000, samples, generator=generator) < won_share).double()
    share = float((settle(units, SHOWN).side > 0).double().mean())
    assert 0.75 < share < 0.9


def test_too_few_samples_are_not_held_against_a_method():
    """A win rate of 70% in 24 samples shows nothing either way; 10% shows that the method fails."""
    known = field({"good": 3.0, "fair": 0.6, "bad": -3.0}, samples=24)
    found = decide(known, METRICS)
    assert statuses(found) == {"good": "trusted", "fair": "not decided", "bad": "refuted"}
    line = next(one for one in said(found) if one.startswith("fair:"))
    assert line.startswith(
        'fair: not decided; open is "Do the features it names matter to this model?": it beats '
    )
    assert line.endswith(" samples would decide it.")


def test_how_many_samples_would_decide_it_is_said():
    wins = torch.ones(64).index_fill(0, torch.arange(0, 64, 3), 0.0)  # two in three
    found = _of_units([torch.ones(64), wins])
    assert statuses(found) == {"one": "not decided"}
    assert 64 < found["one"].needed < 400
    line = next(one for one in said(found) if one.startswith("one:"))
    assert f"about {found['one'].needed} samples would decide it." in line
    even = torch.arange(64) % 2 * 1.0
    assert "more than 1,000 samples would decide it." in " ".join(said(_of_units([torch.ones(64), even])))


def test_nothing_is_to_be_used_only_if_everything_is_refuted():
    bad = decide(field({"a": -3.0, "b": -2.5}), METRICS)
    assert said(bad)[0].endswith("all are refuted. Do not use any of these explanations as evidence.")
    open_ones = decide(field({"a": -3.0, "b": 0.6}), METRICS)
    assert open_ones.best is None
    assert not any("Do not use any" in one for one in said(open_ones))
    assert said(open_ones)[0].endswith('of 2 tried, 1 is "not decided" and 1 is "refuted".')


def test_without_a_verdict_no_method_has_a_word_of_its_own():
    found = decide(field({"good": 9.0}, samples=23), METRICS)
    assert statuses(found) == {"good": "no verdict"}
    assert not words(found).methods


def test_the_table_has_words_questions_and_reasons():
    known = field({"good": 3.0, "bad": -3.0}, absent={"truth": "nobody knows it"})
    frame = decide(known, METRICS).to_frame().set_index("explainer")
    assert frame.loc["good", "status"] == "trusted"
    assert frame.loc["bad", "status"] == "refuted"
    assert frame.loc["bad", "removal"] == "fails"
    assert frame.loc["good", "truth"] == "not asked"
    assert frame.loc["bad", "reason"].startswith("when features are removed it wins only ")
    assert not {"p_holm", "questions"} & set(frame.columns)
