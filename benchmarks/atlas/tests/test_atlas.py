"""An atlas puts metrics where they belong, goes on where it was ended, and writes what it reads."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pandas as pd
import pytest

import veridical as vd
from benchmarks.atlas import Size, jobs, measure
from benchmarks.atlas.page import contents, render
from benchmarks.atlas.schema import EXPLAINERS, METRICS, save
from benchmarks.atlas.tests.judges import Broken, Coin, CoinOfMethods, Perfect
from benchmarks.atlas.verdicts import CARE, NOT, UNMEASURED, USE, judged, listed
from benchmarks.atlas.words import overall, sentences
from veridical.explainers import as_explainer
from veridical.jobs import Store

pytestmark = pytest.mark.slow
LINEAR = ["known/linear"]
SIZE = Size(samples=24, tasks=1, seeds=2, draws=0)


@pytest.fixture(scope="module")
def sane() -> vd.atlas.Atlas:
    judges = [Coin(), Perfect(), CoinOfMethods(), Broken(), "pixel_flipping", "sparseness", "road"]
    return measure(size=SIZE, metrics=judges, tasks=LINEAR, progress=False)


def figures(atlas: vd.atlas.Atlas, metric: str) -> dict:
    return next(row for row in atlas.rows if row["metric"] == metric)


@pytest.mark.parametrize("coin", ["coin", "coin_of_methods"])
def test_a_coin_is_a_coin_and_not_to_be_used(sane, coin):
    row = figures(sane, coin)
    assert row["power"] == pytest.approx(0.5, abs=0.1)
    assert row["power_low"] <= 0.5 <= row["power_high"]
    assert row["first"] == pytest.approx(0.5, abs=0.12)
    assert abs(row["agreement"]) < 0.2
    assert row["noise"] > 0.7
    assert sane.verdict(coin, "table") == NOT


def test_a_perfect_metric_stands_on_top(sane):
    row = figures(sane, "perfect")
    assert row["agreement"] > 0.97
    assert row["first"] == 1
    assert row["noise"] == 0
    assert row["power"] > 0.9
    assert row["blind_places"] == 0
    assert row["blind_sign"] == 0
    assert next(s.metric for s in listed(sane.rows, "table", USE)) == "perfect"


def test_what_cannot_be_measured_says_why(sane):
    assert sane.verdict("road", "table") == UNMEASURED
    assert figures(sane, "road")["reason"] == "it works on image, this task is table"
    assert figures(sane, "broken")["reason"] == "it failed: it is broken"
    with pytest.raises(vd.errors.InputError, match="the atlas has no 'pixels' on 'table'"):
        sane.verdict("pixels", "table")


def test_sparseness_reads_no_places_and_asks_no_rows(sane):
    row = figures(sane, "sparseness")
    assert row["blind_places"] == 1
    assert row["blind_sign"] == 1
    assert row["rows"] == 0
    assert row["permuted"] == 0.5
    assert row["power"] > 0.6
    assert sane.verdict("sparseness", "table") == NOT


def test_rows_do_not_depend_on_who_asked_before(sane):
    alone = measure(size=SIZE, metrics=["pixel_flipping"], tasks=LINEAR, progress=False)
    assert figures(alone, "pixel_flipping")["rows"] == figures(sane, "pixel_flipping")["rows"] == 12


def test_words_are_made_from_the_figures(sane):
    said = {v: " ".join(s for w, s in sentences(sane, "table") if w == v) for v in (USE, NOT)}
    assert "perfect" in said[USE]
    assert "pixel_flipping" in said[USE]
    assert "cannot tell damage from chance: coin" in said[NOT]
    assert "Do not use, since they do not read where the values of a map stand: sparseness." in said[NOT]
    assert overall(sane) == []  # one kind of input is not every kind


# --- files -------------------------------------------------------------------------------------------------


def test_tables_come_back_as_they_went(sane, tmp_path):
    save(sane, tmp_path)
    again = vd.atlas.load(tmp_path)
    pd.testing.assert_frame_equal(again.to_frame(), sane.to_frame())
    pd.testing.assert_frame_equal(again.explainer_frame(), sane.explainer_frame())
    pd.testing.assert_frame_equal(
        pd.read_parquet(tmp_path / "metrics.parquet"), sane.to_frame(), check_dtype=False
    )
    assert repr(again) == repr(sane)
    told = json.loads((tmp_path / "schema.json").read_text())
    for name, columns in (("metrics", METRICS), ("explainers", EXPLAINERS)):
        assert [field["name"] for field in told["tables"][name]] == list(columns)
    assert set(told["tables"]["metrics"][0]) == {"name", "type", "description"}
    ran = json.loads((tmp_path / "run.json").read_text())
    assert {"date", "command", "versions", "seed", "samples", "seconds", "device"} <= set(ran)


def test_every_figure_that_is_measured_has_its_column(sane):
    assert {key for row in sane.rows for key in row} <= set(METRICS)
    assert {key for row in sane.explainers for key in row} <= set(EXPLAINERS)


@pytest.mark.parametrize("content", ["{}", "[1]", "not JSON", '{"format": 99}'])
def test_a_folder_that_holds_no_atlas_is_refused(tmp_path, content):
    (tmp_path / "atlas.json").write_text(content)
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(vd.errors.FormatError):
        vd.atlas.load(tmp_path)


def measured(folder: Path, **more):
    given = {"size": "tiny", "metrics": ["pixel_flipping", "sparseness", "mprt"], "tasks": LINEAR}
    return measure(folder, **{**given, "progress": False, **more})


def test_an_atlas_that_was_ended_goes_on_and_gives_the_same_bytes(tmp_path, monkeypatch):
    measured(tmp_path / "whole")
    real, asked = jobs.carry_out, []

    def dying(cell):
        asked.append(cell.label)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return real(cell)

    monkeypatch.setattr(jobs, "carry_out", dying)
    with pytest.raises(KeyboardInterrupt):
        measured(tmp_path / "ended")
    assert not (tmp_path / "ended" / "atlas.json").exists()
    assert len(list((tmp_path / "ended" / "cells").iterdir())) == 2
    measured(tmp_path / "ended")
    assert len(asked) == 5  # two were kept, one was lost, two were to do
    for name in ("atlas.json", "metrics.parquet", "explainers.parquet", "schema.json"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "ended" / name).read_bytes(), name


def test_what_is_finished_can_be_put_together_and_the_rest_is_named(tmp_path):
    both = {"metrics": ["pixel_flipping", "sparseness"], "tasks": ["known/linear", "known/interactions"]}
    measured(tmp_path, metrics=["pixel_flipping"], tasks=both["tasks"])
    measured(tmp_path, metrics=["sparseness"], tasks=["known/linear"])
    alone = measured(tmp_path, only_kept=True, metrics=["sparseness"], tasks=both["tasks"])
    assert sentences(alone, "table") == [(USE, "No metric measured so far stands without a complaint here.")]
    before = {path: path.read_bytes() for path in (tmp_path / "cells").iterdir()}
    found = measured(tmp_path, only_kept=True, **both)
    assert before == {path: path.read_bytes() for path in (tmp_path / "cells").iterdir()}
    assert found.verdict("pixel_flipping", "table") == measured(tmp_path, **both).verdict(
        "pixel_flipping", "table"
    )
    # half of what the rule asks for is no verdict
    assert found.verdict("sparseness", "table") == UNMEASURED
    reasons = {one.metric: one.reasons for one in found.verdicts}
    assert reasons["sparseness"] == ("not measured yet on known/interactions",)
    page = render(contents(found), "md")
    assert "**1 of 4 cells (one metric on one task each) are not measured yet.**" in page
    assert "sparseness (not measured yet on known/interactions)" in page
    assert "not measured yet" not in render(contents(measured(tmp_path, **both)), "md")


def test_a_cell_that_failed_is_shown_when_what_is_finished_is_put_together(tmp_path):
    measured(tmp_path, metrics=[Broken()])
    found = measured(tmp_path, metrics=[Broken()], only_kept=True)
    assert figures(found, "broken")["reason"] == "it failed: it is broken"


def kept(store: Store, hash: str) -> dict:
    return store.read_json(f"cells/{hash}.json", "atlas cell", 1, hash)


def test_the_dates_are_those_of_the_cells_and_not_of_the_last_call(tmp_path):
    measured(tmp_path)
    store = Store(tmp_path)
    hash = next(h for h in store.hashes("cells") if kept(store, h)["label"] == "sparseness")
    old = {**kept(store, hash), "date": "2001-02-03 04:05 UTC"}
    store.write_json(f"cells/{hash}.json", old, "atlas cell", 1, hash)
    run = measured(tmp_path).run
    assert run["since"] == "2001-02-03 04:05 UTC" < run["date"]
    assert "2001-02-03 04:05 UTC to " in render(contents(measured(tmp_path)), "md")


def test_nothing_finished_is_said(tmp_path):
    with pytest.raises(vd.errors.InputError, match="holds no finished cell"):
        measured(tmp_path, only_kept=True)
    with pytest.raises(vd.errors.InputError, match="give that folder"):
        measured(None, only_kept=True)


def test_other_settings_failures_and_damaged_files_are_measured_again(tmp_path):
    assert figures(measured(tmp_path, metrics=[Broken()]), "broken")["reason"]
    silent = measured(tmp_path, metrics={"broken": Broken("is silent")})
    assert figures(silent, "broken")["missing"] == 1
    assert silent.verdict("broken", "table") == NOT
    plain = figures(measured(tmp_path, metrics=["pixel_flipping"]), "pixel_flipping")
    other = figures(measured(tmp_path, metrics=["pixel_flipping"], seed=1), "pixel_flipping")
    assert plain != other
    for cell in tmp_path.glob("cells/*"):
        cell.write_text("cut sho")
    assert figures(measured(tmp_path, metrics=["pixel_flipping"], seed=1), "pixel_flipping") == other


def test_a_function_of_ones_own_is_known_by_its_text(tmp_path):
    made = []

    def cell(text: str) -> jobs.Cell:
        path = tmp_path / str(len(made)) / "mine.py"
        path.parent.mkdir()
        path.write_text(f"def mine(model, inputs, targets):\n    return {text}\n")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        made.append(module)
        mine = {"mine": as_explainer(module.mine)}
        return jobs.Cell("known/linear", "", None, SIZE, 0, False, mine, None)

    assert cell("inputs").hash == cell("inputs").hash
    assert cell("inputs").hash != cell("-inputs").hash
    namespace = {}
    exec("def mine(model, inputs, targets):\n    return inputs", namespace)  # has no text to read
    unread = {"mine": as_explainer(namespace["mine"])}
    one, two = (jobs.Cell("known/linear", "", None, SIZE, 0, False, unread, None) for _ in range(2))
    assert one.hash == one.hash
    assert one.hash != two.hash


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"size": "huge"}, "tiny, small, standard|did you mean|size of an atlas"),
        ({"tasks": ["known/nothing"]}, "task"),
        ({"workers": 0}, "workers counts processes"),
        ({"metrics": []}, "at least one metric and one task"),
        ({"tasks": []}, "at least one metric and one task"),
        ({"metrics": ["pixelflipping"]}, "pixel_flipping"),
    ],
)
def test_mistakes_are_one_clear_sentence(given, said):
    with pytest.raises(vd.errors.InputError, match=said):
        measure(**{"size": "tiny", "metrics": ["sparseness"], "tasks": LINEAR, **given})


def test_a_task_that_is_not_there_is_a_reason(monkeypatch):
    def absent(*_):
        raise vd.errors.MissingExtraError("this needs the package 'sktime'")

    monkeypatch.setattr(jobs, "_bench", absent)
    found = measure(size="tiny", metrics=["sparseness"], tasks=["basic_motions_cnn"], progress=False)
    assert figures(found, "sparseness")["reason"] == "no such task here: this needs the package 'sktime'"


def test_an_explainer_of_ones_own_is_compared_with_the_known_answer():
    def mine(model, inputs, targets):
        return inputs * 0 + 1

    found = measure(
        size="tiny", metrics=["pixel_flipping"], tasks=LINEAR, explainers={"mine": mine}, progress=False
    )
    near = {row["explainer"]: row["nearness"] for row in found.explainers}
    assert near["mine"] == 0
    assert near["input_x_gradient"] == 1


# --- the rule ----------------------------------------------------------------------------------------------

GOOD = {
    "task": "t", "power": 0.9, "power_low": 0.85, "power_high": 0.95, "permuted": 0.8, "permuted_low": 0.75,
    "permuted_high": 0.85, "first": 0.9, "agreement": 0.8, "agreement_low": 0.7, "noise": 0.1, "missing": 0.0,
    "flag": "", "blind_places": 0.0, "blind_sign": 0.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "verdict", "said"),
    [
        ({}, USE, None),
        ({"power_low": 0.5}, NOT, "cannot tell damage from chance"),
        (
            {"permuted": 0.3, "permuted_low": 0.2, "permuted_high": 0.4},
            NOT,
            "prefers maps with permuted places",
        ),
        ({"permuted_low": 0.45, "blind_places": 1.0}, NOT, "does not read the places"),
        ({"agreement": 0.1, "agreement_low": -0.1}, NOT, "does not follow the truth"),
        ({"agreement": 0.3, "agreement_low": 0.2}, CARE, "follows the truth weakly"),
        ({"first": 0.6}, CARE, "the true map wins only 60%"),
        ({"noise": 0.4}, CARE, "40% of its variance is chance"),
        ({"missing": 0.5, "flag": "why"}, CARE, r"50% of samples get no score \(why\)"),
        ({"power_low": None}, NOT, "cannot tell damage"),
        ({"power": None, "power_low": None, "flag": "why"}, NOT, r"has no scores to compare \(why\)"),
    ],
)
def test_the_rule_of_the_verdict(change, verdict, said):
    found, complaints = judged([{**GOOD, **change}])
    assert found == verdict
    assert re.search(said, complaints[0].said) if said else not complaints
    # good on another task of the kind, it needs care at worst
    assert judged([{**GOOD, **change}, GOOD])[0] == (USE if verdict == USE else CARE)


def check_smallest(found: vd.atlas.Atlas) -> None:
    assert found.modalities == ["image", "table", "series", "text", "language model"]
    assert not [row for row in found.rows if row["reason"].startswith("it failed")]
    for modality in found.modalities:
        assert found.verdict("pixel_flipping", modality) == USE
        assert found.verdict("sparseness", modality) == NOT
        assert found.verdict("mprt", modality) == NOT


def test_the_smallest_atlas_of_every_kind_of_input():
    metrics = ["pixel_flipping", "sparseness", "mprt", "comprehensiveness"]
    check_smallest(measure(size="tiny", metrics=metrics, progress=False))


def test_the_smallest_atlas_of_every_metric(tmp_path):
    check_smallest(measure(tmp_path, size="tiny", progress=False))
