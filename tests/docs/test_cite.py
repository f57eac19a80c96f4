"""The BibTeX entries and CITATION.cff say the same."""

import re
from pathlib import Path

import yaml

import veridical as vd

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "how-to" / "cite.md").read_text()
CFF = yaml.safe_load((ROOT / "CITATION.cff").read_text())


def entries() -> dict[str, dict[str, str]]:
    """Title -> fields of each entry."""
    found = {}
    for body in re.findall(r"^@\w+\{\w+,\n(.*?)^\}", PAGE, re.MULTILINE | re.DOTALL):
        fields = dict(re.findall(r"^\s*(\w+)\s*= \{(.*)\},$", body, re.MULTILINE))
        found[fields["title"]] = fields
    return found


def test_every_reference_has_an_entry_with_its_year_and_authors() -> None:
    written = entries()
    assert len(CFF["references"]) == 5
    for paper in CFF["references"]:
        fields = written[paper["title"]]
        assert fields["year"] == str(paper["year"])
        assert len(fields["author"].split(" and ")) == len(paper["authors"])
        plain = re.sub(r'\{\\["o]*([a-z])?\}', r"\1", fields["author"])
        assert paper["authors"][0]["family-names"][:5] in plain
        place = paper.get("journal") or paper.get("collection-title")
        assert fields.get("journal", fields.get("booktitle")) == place
        if "url" in fields:
            assert fields["url"] == paper["url"]


def test_the_package_is_the_version_at_hand() -> None:
    assert entries()[CFF["title"]]["version"] == str(CFF["version"]) == vd.__version__
