"""What an atlas comes to in words; every sentence is made from the figures."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.atlas.verdicts import CARE, NOT, UNMEASURED, USE, WAITING, Summary, listed, summarised
from veridical.atlas import Atlas

PHRASES = {
    "unscored": "have no scores to compare",
    "placeless": "do not read where the values of a map stand",
    "prefers": "prefer damaged maps",
    "chance": "cannot tell damage from chance",
    "apart": "do not follow the truth",
    "weak": "follow the truth weakly",
    "beaten": "often prefer another map to the true one",
    "noisy": "owe over a quarter of their variance to chance",
    "silent": "leave over a quarter of the samples without a score",
}
ON_SOME = ("unscored", "placeless", "prefers", "chance", "apart")
"""What would be no reason for care, but against any use, if it held on every task of the kind."""
PLURALS = {"image": "images", "table": "tables", "language model": "language models"}


def plural(modality: str) -> str:
    """The kind of input as a heading."""
    return PLURALS.get(modality, modality)


def overall(atlas: Atlas) -> list[str]:
    """What holds for every kind of input on which a metric was measured."""
    everywhere = {USE: list[str](), NOT: list[str]()}
    summaries = summarised(atlas.rows).values()
    for metric in dict.fromkeys(summary.metric for summary in summaries):
        found = [s.verdict for s in summaries if s.metric == metric and s.tasks]
        if len(found) > 1 and len(set(found)) == 1 and found[0] in everywhere:
            everywhere[found[0]].append(metric)
    said = {
        USE: "To be used on every kind of input where they were measured",
        NOT: "On no kind of input able to tell a right map from a wrong one, whatever else they describe",
    }
    return [f"{said[v]}: {', '.join(metrics)}." for v, metrics in everywhere.items() if metrics]


def sentences(atlas: Atlas, modality: str) -> list[tuple[str, str]]:
    """For one kind of input: (verdict, sentence), which metrics to use and which not, grouped by reason."""
    good = listed(atlas.rows, modality, USE)
    so_far = any(s.complaints[0].said.startswith(WAITING) for s in listed(atlas.rows, modality, UNMEASURED))
    out = [(USE, f"No metric {'measured so far ' if so_far else ''}stands without a complaint here.")]
    if good:
        figures = f"they order damaged maps rightly in {_span(good, 'power')} of pairs"
        if any(s.figures["agreement"] is not None for s in good):
            figures += f" and follow the truth with a rank correlation of {_span(good, 'agreement', '.2f')}"
        free = [s.metric for s in good if "masks" not in s.needs]
        masked = [s.metric for s in good if "masks" in s.needs]
        out = [(USE, f"Use {', '.join(free or masked)}: {figures}.")]
        if free and masked:
            out.append((USE, f"Where object masks can be believed, also {', '.join(masked)}."))
    for verdict, opening in ((CARE, "With care"), (NOT, "Do not use")):
        found = listed(atlas.rows, modality, verdict)
        for kind, phrase in PHRASES.items():
            some = [s for s in found if s.complaints[0].kind == kind]
            if some:
                where = " on some task" if verdict == CARE and kind in ON_SOME else ""
                names = ", ".join(s.metric for s in some)
                out.append((verdict, f"{opening}, since they {phrase}{where}: {names}."))
    return out


def _span(found: Sequence[Summary], name: str, form: str = ".0%") -> str:
    values = sorted(value for s in found if (value := s.figures[name]) is not None)
    low, high = f"{values[0]:{form}}", f"{values[-1]:{form}}"
    return low if low == high else f"{low} to {high}"
