"""The papers behind what was used, as BibTeX; entries are found by the way our cards name a paper."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from veridical._version import __version__

BIBLIOGRAPHY = Path(__file__).parent / "bibliography.bib"
SYSTEMS = {
    "GEF": "Hedström et al. 2025",
    "Generalised Explanation Faithfulness": "Hedström et al. 2025",
    "QGE": "Eiras-Franco et al. 2025",
    "F-Fidelity": "Zheng et al. 2025",
    "MetaQuantus": "Hedström et al. 2023",
    "SURF": "Kumar and Ahuja 2025",
}
STATISTICS = ("Waudby-Smith and Ramdas 2024",)
_NAMED = re.compile(r"[^\W\d_][\w.'-]*(?: and [^\W\d_][\w.'-]*| et al\.)? (?:19|20)\d\d")


def bibtex(papers: Iterable[str]) -> str:
    """Entries of all papers that these texts name, and one of veridical itself; each once, by key."""
    keys: dict[str, None] = {}
    for paper in papers:
        for named in papers_in(paper):
            for key in _keys(named):
                keys.setdefault(key)
    return "\n\n".join([_own(), *(entries()[key] for key in sorted(keys))]) + "\n"


def papers_in(text: str) -> list[str]:
    """The papers a card names: 'Yeh et al. 2019; MetaQuantus eq. 18' names two.

    >>> papers_in("Yeh et al. 2019; MetaQuantus eq. 18")
    ['Yeh et al. 2019', 'Hedström et al. 2023']
    """
    found = _NAMED.findall(text)
    found += [paper for word, paper in SYSTEMS.items() if word in text and paper not in found]
    return found


def _keys(named: str) -> list[str]:
    """Keys of a paper; two papers of one year have letters after it."""
    slug = key_of(named)
    return [key for key in entries() if re.fullmatch(re.escape(slug) + "[a-z]?", key)]


def key_of(named: str) -> str:
    """'Hedström et al. 2025' as a key: hedstrom-et-al-2025."""
    plain = unicodedata.normalize("NFKD", named).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-")


@cache
def entries() -> dict[str, str]:
    """All entries of the bibliography by key."""
    text = BIBLIOGRAPHY.read_text(encoding="utf-8")
    found = {}
    for entry in re.split(r"\n(?=@)", text):
        head = re.match(r"@\w+\{([^,]+),", entry)
        if head:
            found[head.group(1)] = entry.strip()
    return found


def _own() -> str:
    return (
        "@software{veridical,\n  author = {{The veridical contributors}},\n"
        "  title = {{veridical: how faithful is an explanation, and how far can that number be trusted?}},\n"
        f"  version = {{{__version__}}}\n}}"
    )
