"""The summary of all claims: every row has a folder, a verdict of the four, and a size."""

import re
from pathlib import Path

import pytest

from scripts.count_claims import Claim, claims, counted
from veridical.cli.replicate import PAPERS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "replications.md").read_text(encoding="utf-8")
ROWS = claims(PAGE)


def test_all_five_papers_are_there() -> None:
    assert {row.folder for row in ROWS} == set(PAPERS.values())
    assert len(ROWS) > 25


def test_the_tables_and_counts_are_made_from_the_details() -> None:
    assert counted(PAGE) == PAGE


def test_a_change_of_a_detail_changes_table_and_count() -> None:
    row = next(row for row in ROWS if row.verdict == "holds")
    changed = PAGE.replace(row.rest, row.rest.replace("**holds**", "**in part**: half"))
    new = counted(changed)
    assert f"| {row.claim} | in part |" in new
    assert new.count("| in part |") == PAGE.count("| in part |") + 1
    top = [page[: page.index("```console")] for page in (PAGE, new)]
    assert top[0] != top[1]


@pytest.mark.parametrize(
    ("verdict", "message"),
    [
        ("**holds**, but for one", "holds in part"),
        ("**does not**", "say why"),
        ("**not tested**: ", "say why"),
        ("**partly**", "no verdict"),
    ],
)
def test_a_limited_or_bare_verdict_is_refused(verdict: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Claim("gef", "a claim", f"On: a<br>Verdict: {verdict}").verdict  # noqa: B018 (a property)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.claim[:40])
def test_every_row_is_whole(row: Claim) -> None:
    assert (ROOT / "replications" / row.folder / "README.md").is_file()
    assert (ROOT / "replications" / row.folder / "__main__.py").is_file()
    if row.verdict != "not tested":
        assert "Ours: " in row.rest, "a verdict needs a figure of ours"
        assert "On: " in row.rest, "and the sample it rests on"


@pytest.mark.parametrize(("folder", "tables", "figures"), [("qge", 6, 7), ("f_fidelity", 26, 5)])
def test_every_table_and_figure_of_the_paper_has_a_word(folder: str, tables: int, figures: int) -> None:
    text = "; ".join(row.claim for row in ROWS if row.folder == folder)
    named: dict[str, set[int]] = {"Table": set(), "figure": set()}
    for kind, numbers in re.findall(r"(Table|figure)s? ((?:\d+(?:, | and | to )?)+)", text):
        for first, last in re.findall(r"(\d+)(?: to (\d+))?", numbers):
            named[kind] |= set(range(int(first), int(last or first) + 1))
    assert named == {"Table": {*range(1, tables + 1)}, "figure": {*range(1, figures + 1)}}
