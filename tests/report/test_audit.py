"""The report of an audit: all it must show, nothing that attacks, the same page from saved contents."""

import base64
import hashlib
import json
import math
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from tests.report.audits import FORMULA, HOSTILE, SCRIPT, hostile
from tests.report.pages import Page, dangers
from veridical.auditing import Audit
from veridical.auditing.result import plot_ranking
from veridical.auditing.verdict import Words
from veridical.core.key import Key
from veridical.errors import FormatError, InputError
from veridical.report.audit import contents, write_audit
from veridical.report.rendering import read, render, save


def words(text: str) -> str:
    return " ".join(text.split())


def test_the_verdict_comes_first(audited: Audit, shown: dict[str, Any]) -> None:
    text = words(Page(render(shown)).text)
    assert shown["verdict"]["headline"] in text
    for said in (*audited.verdict.words.answer[1:], *audited.verdict.words.remarks):
        assert words(said) in text
    for place in shown["ranking"]:
        assert words(f"{place['explainer']} {place['word']}") in text
        assert words(place["why"]) in text
    order = ["What would change it", "Limits", "What was audited", "The methods", "What each metric can see"]
    places = [text.index(shown["verdict"]["headline"]), *(text.index(title) for title in order)]
    assert places == sorted(places)


def test_the_first_page_can_be_signed(audited: Audit, shown: dict[str, Any]) -> None:
    first = shown["first_page"]
    assert first["question"].startswith(f"Which of {len(audited.ranking)} explainers may be used")
    assert {one["criterion"] for one in first["evidence"]} >= {"removal", "randomisation"}
    assert all(one["said"] for one in first["evidence"])
    assert first["changes"]
    assert first["limits"]
    text = words(Page(render(shown)).text)
    for one in first["evidence"]:
        assert all(words(said) in text for said in one["said"])


def test_identity_tells_weights_and_data_apart(audited: Audit, shown: dict[str, Any]) -> None:
    digests = shown["identity"]["digests"]
    task = audited.task
    assert len({digest for digest in digests.values() if digest}) == len([d for d in digests.values() if d])
    moved = replace(audited, task=task.with_inputs(task.inputs + 1))
    other = contents(moved)["identity"]["digests"]
    assert other["weights"] == digests["weights"]
    assert other["samples"] != digests["samples"]
    fresh = replace(audited, task=task.with_noise(0.1, Key(0)))
    assert contents(fresh)["identity"]["digests"]["weights"] != digests["weights"]
    assert shown["identity"]["call"].startswith("vd.audit(task, explainers={")


def test_everything_asked_for_is_there(shown: dict[str, Any]) -> None:
    text = words(Page(render(shown)).text)
    sections = (
        "What was audited",
        "The methods",
        "Every test",
        "pairs of methods",
        "The model itself",
        "What each metric can see here",
        "Explainers by metric",
        "Curves",
        "Distortion paths",
        "Robustness to masks",
        "Standing among random rankings",
        "Gallery",
        "Failed cells",
        "Degenerate values",
        "Settings and cost",
        "Citing",
    )
    assert [name for name in sections if name not in text] == []
    assert "no map today" in text
    assert "Traceback" in text
    assert "@software{veridical" in text
    assert "hedstrom-et-al-2025" in text
    assert "meta_draws=1" in text


@pytest.mark.parametrize("attack", ["real names", "every text"])
def test_hostile_names_labels_and_texts_do_nothing(attack: str, shown: dict[str, Any]) -> None:
    given = shown if attack == "real names" else hostile(shown)
    page = render(given)
    assert dangers(page) == []
    assert (SCRIPT if attack == "real names" else HOSTILE) in Page(page).text


def test_policy_allows_this_style_and_this_script_alone(shown: dict[str, Any]) -> None:
    page = render(shown)
    policy = next(a["content"] for a in Page(page).named("meta") if a.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none'; img-src data:;")
    assert "unsafe" not in policy
    for name in ("style", "script"):
        inside = re.search(rf"<{name}>(.*?)</{name}>", page, re.S)
        assert inside is not None
        digest = base64.b64encode(hashlib.sha256(inside.group(1).encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in policy


def test_rendering_is_deterministic_and_reads_saved_contents_only(audited: Audit, tmp_path: Path) -> None:
    first = contents(audited)
    again = contents(audited)
    again["made"] = first["made"]
    assert first == again
    assert json.loads(json.dumps(first, allow_nan=False)) == first
    saved = read(save(contents(audited), tmp_path / "report.json"))
    saved["made"] = first["made"]
    for format in ("html", "md"):
        assert render(saved, format) == render(first, format)
    assert read(tmp_path) == read(tmp_path / "report.json")


def test_markdown_shows_the_same_and_escapes(audited: Audit, shown: dict[str, Any], tmp_path: Path) -> None:
    text = write_audit(audited, tmp_path / "report.md", "md").read_text()
    assert text.startswith("# ")
    outside = re.sub(r"(`{3,}).*?\1", "", text, flags=re.S)
    assert re.search(r"(?<!\\)<", outside) is None
    rows = [line for line in text.splitlines() if line.startswith(f"| {FORMULA.split('|')[0]}")]
    assert len(rows) >= 2
    assert all(r"\|calc" in row for row in rows)
    assert "## What failed" in text
    assert "```bibtex" in text


def test_unknown_format_is_refused(shown: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="html or md"):
        render(shown, "pdf")


@pytest.mark.parametrize("text", ["{}", "no json", '{"kind": "audit", "format": 99}', "[]"])
def test_other_files_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(FormatError):
        read(tmp_path)
    with pytest.raises(InputError, match="there is no"):
        read(tmp_path / "elsewhere")


def test_damaged_contents_are_refused(shown: dict[str, Any]) -> None:
    with pytest.raises(FormatError, match="lack something"):
        render({key: held for key, held in shown.items() if key != "ranking"})


def test_contents_cannot_bring_a_style_or_script(shown: dict[str, Any]) -> None:
    assert render({**shown, "style": SCRIPT, "script": "alert(3)", "policy": "*"}) == render(shown)


def test_nobody_trusted_is_said_loudly(audited: Audit) -> None:
    verdict = audited.verdict
    places = tuple(replace(p, unfinished="it was stopped", group=0) for p in verdict.places)
    said = Words(("No method is trusted on this model: of 3, 3 not decided.",))
    nobody = replace(verdict, places=places, groups=(), why_none="", words=said)
    page = render(contents(replace(audited, verdict=nobody)))
    assert '<div class="verdict none"' in page
    assert "<h1>No method is trusted on this model.</h1>" in page
    assert ">Of 3, 3 not decided.<" in page


def test_no_verdict_at_all(audited: Audit) -> None:
    """No admissible metric: scores and intervals are missing, and the page still stands."""
    nan = math.nan
    places = tuple(
        replace(p, score=nan, low=nan, high=nan, questions=(), group=0) for p in audited.verdict.places
    )
    metrics = tuple(
        replace(j, inadmissible="it is a coin") if j.decides else j for j in audited.verdict.metrics
    )
    silent = replace(
        audited.verdict,
        places=places,
        metrics=metrics,
        pairs=(),
        groups=(),
        why_none="nothing can be believed",
        words=Words(("No verdict: nothing can be believed.",)),
    )
    bare = replace(
        audited, verdict=silent, reliability=None, robustness=None, standings={}, damage=None, beside=()
    )
    page = render(contents(bare))
    assert "<h1>No verdict.</h1>" in page
    assert "100%" not in Page(page).text.split("What was audited")[0].replace("0 to 100%", "")
    assert dangers(page) == []
    assert render(contents(bare), "md").startswith("# No verdict")


def test_accessible_by_construction(shown: dict[str, Any]) -> None:
    page = Page(render(shown))
    assert page.named("html")[0]["lang"] == "en"
    assert all(a.get("scope") in ("col", "row") for a in page.named("th"))
    assert all(a.get("alt") for a in page.named("img"))
    identities = [a["id"] for _, a in page.elements if "id" in a]
    assert len(set(identities)) == len(identities)
    for drawing in page.named("svg"):
        assert drawing["role"] == "img"
        assert set((drawing["aria-labelledby"] or "").split()) <= set(identities)
    targets = [(a["href"] or "")[1:] for a in page.named("a")]
    assert set(targets) <= set(identities)
    levels = [int(tag[1]) for tag, _ in page.elements if tag in ("h1", "h2", "h3")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))


def test_ranking_is_drawn_with_the_best_on_top(audited: Audit) -> None:
    ax = audited.plot(Figure().subplots())
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert names[-1] == audited.ranking[0].explainer
    assert len(names) == len(audited.ranking)  # controls do not compete
    places = tuple(replace(p, score=float("nan")) for p in audited.verdict.places)
    with pytest.raises(InputError, match="no ranking"):
        plot_ranking(replace(audited.verdict, places=places), Figure().subplots())
