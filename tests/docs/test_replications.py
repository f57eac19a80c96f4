"""The summary of all claims: every row has a folder, a verdict of the four, and a size."""

import re
from pathlib import Path

import pytest

from veridical.cli.replicate import PAPERS

ROOT = Path(__file__).resolve().parents[2]
VERDICTS = ("holds", "in part", "does not", "not tested")
PAGE = (ROOT / "docs" / "replications.md").read_text(encoding="utf-8")
PART = re.compile(r"folder `replications/(\w+)`\.\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
CLAIM = re.compile(r"^    - \*\*(?P<claim>.+?)\*\*<br>(?P<rest>.+)$", re.MULTILINE)
ROWS = [(folder, *found) for folder, text in PART.findall(PAGE) for found in CLAIM.findall(text)]


def listed(folder: str) -> list[str]:
    """The claims in the short table of a paper."""
    text = next(text for name, text in PART.findall(PAGE) if name == folder)
    return re.findall(r"^\| ([A-Z].+) \| [a-z].+ \|$", text, re.MULTILINE)


def test_all_five_papers_are_there() -> None:
    assert {folder for folder, *_ in ROWS} == set(PAPERS.values())
    assert len(ROWS) > 25


@pytest.mark.parametrize("folder", sorted(PAPERS.values()))
def test_the_short_table_and_the_figures_name_the_same_claims(folder: str) -> None:
    assert listed(folder) == [claim for name, claim, _ in ROWS if name == folder]


def test_the_counts_on_top_are_those_of_the_tables() -> None:
    for folder in set(PAPERS.values()):
        verdicts = [verdict_of(rest) for name, _, rest in ROWS if name == folder]
        row = f"| {' | '.join(str(verdicts.count(verdict)) for verdict in VERDICTS)} |"
        assert row in PAGE, folder


def verdict_of(rest: str) -> str:
    return re.search(r"Verdict: \*\*([a-z ]+)\*\*", rest)[1]  # type: ignore[index]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[1][:40])
def test_every_row_is_whole(row: tuple[str, str, str]) -> None:
    folder, _, rest = row
    assert (ROOT / "replications" / folder / "README.md").is_file()
    assert (ROOT / "replications" / folder / "__main__.py").is_file()
    verdict = verdict_of(rest)
    assert verdict in VERDICTS
    if verdict != "not tested":
        assert "Ours: " in rest, "a verdict needs a figure of ours"
        assert "On: " in rest, "and the sample it rests on"
    elif not re.search(r"\*\*not tested\*\*: .", rest):
        pytest.fail("say why it was not tested")
