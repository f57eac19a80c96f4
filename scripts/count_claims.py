"""Write the verdicts and counts of docs/replications.md from its detailed rows.

python -m scripts.count_claims           rewrite the short tables and the counts on top
python -m scripts.count_claims --check   say whether they are those of the details

A detail ends in "Verdict: **holds**", "**in part**: why", "**does not**: why" or "**not tested**: why". What
holds has no word that limits it: a remark that does not is "**holds**. Note: ...".
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "replications.md"
VERDICTS = ("holds", "in part", "does not", "not tested")
PAPER = re.compile(r"folder `replications/(\w+)`\.\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
DETAIL = re.compile(r"^    - \*\*(?P<claim>.+?)\*\*<br>(?P<rest>.+)$", re.MULTILINE)
VERDICT = re.compile(r"Verdict: \*\*(?P<word>[a-z ]+)\*\*(?P<more>.*)$")
SHORT = re.compile(r"^\| claim \| verdict \|\n\|---\|---\|\n(?:\| .+ \|\n)+", re.MULTILINE)


@dataclass(frozen=True)
class Claim:
    """One detailed row of a paper."""

    folder: str
    claim: str
    rest: str
    """What is printed, what we get, on which data, and the verdict."""

    @property
    def verdict(self) -> str:
        """The verdict in one of four words; a limited "holds" is refused."""
        found = VERDICT.search(self.rest)
        if found is None or found["word"] not in VERDICTS:
            raise ValueError(f"'{self.claim}' ends in no verdict among {', '.join(VERDICTS)}")
        more = found["more"]
        if found["word"] == "holds" and more and not more.startswith(". Note: "):
            raise ValueError(f"'{self.claim}' holds{more}: what is limited holds in part")
        if found["word"] != "holds" and not re.match(r": \S", more):
            raise ValueError(f"'{self.claim}': say why it is '{found['word']}', after a colon")
        return found["word"]


def claims(page: str) -> list[Claim]:
    """All detailed rows of the page."""
    return [Claim(folder, *found) for folder, text in PAPER.findall(page) for found in DETAIL.findall(text)]


def counted(page: str) -> str:
    """The page with the short tables and the counts that follow from its details."""
    rows = claims(page)
    for paper in PAPER.finditer(page):
        own = [row for row in rows if row.folder == paper[1]]
        short = "| claim | verdict |\n|---|---|\n" + "".join(f"| {c.claim} | {c.verdict} |\n" for c in own)
        page = page.replace(paper[2], SHORT.sub(lambda _, new=short: new, paper[2], count=1))
        numbers = " | ".join(str([c.verdict for c in own].count(verdict)) for verdict in VERDICTS)
        title = page[: page.index(f"folder `replications/{paper[1]}`")].rsplit("\n## ", 1)[1].split("\n")[0]
        line = re.compile(rf"^(\| \[{re.escape(title)}\]\(.+?\) .*?\)) \|.+\|$", re.MULTILINE)
        page = line.sub(lambda found, new=numbers: f"{found[1]} | {new} |", page)
    return page


def main() -> None:
    """Rewrite the page, or check it."""
    page = PAGE.read_text(encoding="utf-8")
    new = counted(page)
    if "--check" in sys.argv:
        sys.exit("the short tables and counts are not those of the details" if new != page else 0)
    PAGE.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
