"""The report of an audit: all it must show, nothing that attacks, the same page from saved contents."""

import base64
import copy
import hashlib
import json
import math
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.report.audits import FORMULA, HOSTILE, QUOTE, SCRIPT, hostile
from tests.report.pages import Page, dangers
from veridical.audit import Audit
from veridical.errors import FormatError, InputError
from veridical.report.audit import contents, save_contents, write_audit
from veridical.report.rendering import read, render


def words(text: str) -> str:
    return " ".join(text.split())


def test_contents_are_plain_data(shown: dict[str, Any]) -> None:
    text = json.dumps(shown, allow_nan=False)
    assert json.loads(text) == shown


def test_the_verdict_comes_first(audited: Audit, shown: dict[str, Any]) -> None:
    page = Page(render(shown))
    text = words(page.text)
    assert f"Use {QUOTE}" in text
    for said in audited.sentences[1:]:
        assert words(said) in text
    assert text.index(f"Use {QUOTE}") < text.index("Critical differences")


def test_everything_asked_for_is_there(shown: dict[str, Any]) -> None:
    text = words(Page(render(shown)).text)
    sections = (
        "Ranking",
        "Critical differences",
        "pairs (Wilcoxon",
        "The model itself",
        "How far each metric can be believed",
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


def test_a_page_without_escaping_would_be_caught(shown: dict[str, Any]) -> None:
    page = render(shown).replace("<h1>", f"<h1>{SCRIPT}")
    assert dangers(page) != []


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
    saved = read(save_contents(audited, tmp_path / "report.json"))
    saved["made"] = first["made"]
    for format in ("html", "md"):
        assert render(saved, format) == render(first, format)
    assert read(tmp_path) == read(tmp_path / "report.json")


def test_page_is_small_and_written_whole(audited: Audit, tmp_path: Path) -> None:
    path = write_audit(audited, tmp_path / "deep" / "report.html")
    assert path.stat().st_size < 1_000_000
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]


def test_markdown_shows_the_same_and_escapes(audited: Audit, shown: dict[str, Any], tmp_path: Path) -> None:
    text = write_audit(audited, tmp_path / "report.md", "md").read_text()
    assert text.startswith("# Use \"\\>\\<svg onload='alert(2)'\\>")
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


def test_no_method_better_than_chance_is_said_loudly(audited: Audit) -> None:
    verdict = audited.verdict
    places = tuple(replace(p, beats=dict.fromkeys(p.beats, 1.0)) for p in verdict.places)
    said = ("No method is better than chance on this model: none stands above random for certain.",)
    page = render(contents(replace(audited, verdict=replace(verdict, places=places, sentences=said))))
    assert '<div class="verdict none"' in page
    assert "<h1>No method is better than chance on this model.</h1>" in page
    assert ">None stands above random for certain.<" in page


def test_no_verdict_at_all(audited: Audit) -> None:
    """No metric with a voice: scores, ranks and intervals are missing, and the page still stands."""
    nan = math.nan
    places = tuple(
        replace(
            p,
            score=nan,
            low=nan,
            high=nan,
            p_best=nan,
            rank=nan,
            rank_low=nan,
            rank_high=nan,
            mean_rank=nan,
            beats={},
        )
        for p in audited.verdict.places
    )
    judges = tuple(replace(j, weight=0.0) for j in audited.verdict.judges)
    silent = replace(
        audited.verdict, places=places, judges=judges, pairs=(), groups=(), kendall_w=nan, friedman_p=nan,
        critical_difference=nan, with_rest={}, sentences=("No verdict: nothing can be believed.",),
    )  # fmt: skip
    bare = replace(audited, verdict=silent, reliability=None, robustness=None, standings={})
    page = render(contents(bare))
    assert "<h1>No verdict.</h1>" in page
    assert dangers(page) == []
    assert render(contents(bare), "md").startswith("# No verdict")


def test_gallery_is_ordered_by_disagreement(shown: dict[str, Any]) -> None:
    page = Page(render(shown))
    values = [float(a["data-disagreement"] or "nan") for a in page.named("article")]
    assert values == sorted(values, reverse=True)
    assert len(values) == len(shown["gallery"]["items"])


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


def test_contents_are_not_changed_by_rendering(shown: dict[str, Any]) -> None:
    before = copy.deepcopy(shown)
    render(shown)
    render(shown, "md")
    assert shown == before
