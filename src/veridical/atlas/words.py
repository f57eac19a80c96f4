"""What an atlas comes to in words; every sentence is made from the figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from veridical.atlas.verdicts import CARE, NOT, USE, Summary

if TYPE_CHECKING:
    from veridical.atlas.result import Atlas

PLURALS = {"image": "images", "table": "tables", "language model": "language models"}


def plural(modality: str) -> str:
    """The kind of input as a heading."""
    return PLURALS.get(modality, modality)


def overall(atlas: Atlas) -> list[str]:
    """What holds for every kind of input on which a metric was measured."""
    everywhere = {USE: list[str](), NOT: list[str]()}
    for metric in dict.fromkeys(summary.metric for summary in atlas.summaries.values()):
        found = [s.verdict for s in atlas.summaries.values() if s.metric == metric and s.tasks]
        if len(found) > 1 and len(set(found)) == 1 and found[0] in everywhere:
            everywhere[found[0]].append(metric)
    said = {
        USE: "To be used on every kind of input where they were measured",
        NOT: "On no kind of input able to tell a right map from a wrong one, whatever else they describe",
    }
    return [f"{said[v]}: {', '.join(metrics)}." for v, metrics in everywhere.items() if metrics]


def sentences(atlas: Atlas, modality: str) -> list[tuple[str, str]]:
    """For one kind of input: (verdict, sentence), which metrics to use and which not."""
    out = []
    good, open_, bad = (atlas.listed(modality, verdict) for verdict in (USE, CARE, NOT))
    if good:
        figures = f"they order damaged maps rightly in {_span(good, 'power')} of pairs"
        if any(s.figures["agreement"] is not None for s in good):
            figures += f" and follow the truth with a rank correlation of {_span(good, 'agreement', '.2f')}"
        out.append((USE, f"Use {_names(good)}: {figures}."))
    else:
        out.append((USE, "No metric stands without a complaint here."))
    out += [(CARE, f"{s.metric} with care: it {_first(s)}.") for s in open_]
    families = dict.fromkeys(s.category for s in bad)
    for family in families:
        some = [s for s in bad if s.category == family]
        worst = ", ".join(f"{s.metric} ({s.reasons[0].partition(' on ')[0]})" for s in some)
        out.append((NOT, f"Not to decide by, {family}: {worst}."))
    return out


def _first(summary: Summary) -> str:
    said = summary.reasons[0]
    more = len(summary.reasons) - 1
    for opening in ("the true map", *"0123456789"):
        if said.startswith(opening):
            said = f"has a weakness: {said}"
            break
    return said + (f" (and {more} more complaint{'s' * (more > 1)})" if more else "")


def _names(found: Sequence[Summary]) -> str:
    return ", ".join(s.metric + (f" (needs {s.needs})" if "masks" in s.needs else "") for s in found)


def _span(found: Sequence[Summary], name: str, form: str = ".0%") -> str:
    values = sorted(value for s in found if (value := s.figures[name]) is not None)
    low, high = f"{values[0]:{form}}", f"{values[-1]:{form}}"
    return low if low == high else f"{low} to {high}"
