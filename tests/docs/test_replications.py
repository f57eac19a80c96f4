"""The summary of all claims: every row has a folder, a verdict of the four, and a size."""

import re
from pathlib import Path

import pytest

from veridical.cli.replicate import PAPERS

ROOT = Path(__file__).resolve().parents[2]
VERDICTS = ("holds", "in part", "does not", "not tested")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs" / "replications.md").read_text().splitlines()
    if re.match(r"^\| `\w+` \| [A-Z]", line)
]


def test_all_five_papers_are_there() -> None:
    assert {row[0].strip("` ") for row in ROWS} == set(PAPERS.values())
    assert len(ROWS) > 25


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[1][:40])
def test_every_row_is_whole(row: list[str]) -> None:
    assert len(row) == 6
    folder = ROOT / "replications" / row[0].strip("` ")
    assert (folder / "README.md").is_file()
    assert (folder / "__main__.py").is_file()
    verdict = re.match(r"\*\*([a-z ]+)\*\*", row[5])
    assert verdict is not None
    assert verdict[1] in VERDICTS
    if verdict[1] != "not tested":
        assert row[3], "a verdict needs a figure of ours"
        assert row[4], "and the sample it rests on"
    elif len(row[5]) < len("**not tested**: x"):
        pytest.fail("say why it was not tested")
