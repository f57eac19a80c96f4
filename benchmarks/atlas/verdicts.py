"""What the figures of a metric on one kind of input come to: use it, with care, or not; and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from veridical.atlas import VERDICTS, Verdict

USE, CARE, NOT, UNMEASURED = VERDICTS
COIN = 0.5
MOSTLY = 0.75
"""The true map should win three of four duels with other maps."""
WEAK = 0.5
"""The least rank correlation with the truth of a metric that may decide."""
NOISY = 0.25
"""More of a score's variance should not be chance."""
SILENT = 0.25
"""More samples should not be left without a score."""
WAITING = "not measured yet"
"""The reason of a cell that was left out when an unfinished atlas was put together."""
Rows = Sequence[Mapping[str, Any]]


class Complaint(NamedTuple):
    """What speaks against a metric: which kind of thing, and in words with its figure and task."""

    kind: str
    said: str


@dataclass(frozen=True)
class Summary:
    """One metric on one kind of input, over all tasks of that kind."""

    metric: str
    category: str
    judges: str
    needs: str
    modality: str
    tasks: int
    figures: Mapping[str, float | None]
    """Means over tasks; of noise and flagged samples the largest."""
    verdict: str
    complaints: tuple[Complaint, ...]
    """Why the verdict is not better; what weighs most comes first."""

    @property
    def merit(self) -> float:
        """By what metrics are ordered: the mean of power, duels won, and agreement on a scale from 0 to 1."""
        power, first, agreement = (self.figures[name] for name in ("power", "first", "agreement"))
        parts = [power, first, None if agreement is None else (1 + agreement) / 2]
        known = [part for part in parts if part is not None]
        return sum(known) / len(known) if known else -1.0


def summarised(rows: Rows) -> dict[tuple[str, str], Summary]:
    """A summary per metric and kind of input, best verdicts and metrics first."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["metric"], row["modality"]), []).append(row)
    found = [_summary(group) for group in groups.values()]
    found.sort(key=lambda s: (VERDICTS.index(s.verdict), -s.merit, s.metric))
    return {(summary.metric, summary.modality): summary for summary in found}


def verdicts(rows: Rows) -> list[Verdict]:
    """The verdicts alone, as an atlas keeps them."""
    return [
        Verdict(s.metric, s.modality, s.verdict, tuple(one.said for one in s.complaints))
        for s in summarised(rows).values()
    ]


def listed(rows: Rows, modality: str, verdict: str) -> list[Summary]:
    """The metrics of a verdict on one kind of input, best first."""
    return [s for s in summarised(rows).values() if (s.modality, s.verdict) == (modality, verdict)]


def _summary(group: Rows) -> Summary:
    asked = [row for row in group if not row["reason"]]
    verdict, complaints = UNMEASURED, [Complaint("unmeasured", row["reason"]) for row in group]
    waiting = [row["task"] for row in group if row["reason"] == WAITING]
    if waiting:  # the rule asks about every task of the kind
        asked, complaints = [], [Complaint("unmeasured", f"{WAITING} on {', '.join(waiting)}")]
    if asked:
        verdict, complaints = judged(asked)
    figures: dict[str, float | None] = {name: _mean(asked, name) for name in MEANS}
    for name in ("noise", "flagged"):
        figures[name] = max((row[name] for row in asked if row.get(name) is not None), default=None)
    one = group[0]
    named = (one["metric"], one["category"], one["judges"], one.get("needs") or "", one["modality"])
    return Summary(*named, len(asked), figures, verdict, tuple(dict.fromkeys(complaints)))


MEANS = ("power", "permuted", "first", "agreement", "blind_places", "blind_sign", "mc", "dependence", "rows")


def judged(asked: Rows) -> tuple[str, list[Complaint]]:
    """The verdict over the tasks of one kind of input, and every complaint, those that decide it first.

    A metric that sees damage on no task, or follows no known answer, is not to be used to tell right maps
    from wrong ones. One that does on some tasks only, follows the truth weakly, often prefers another map to
    the true one, is noisy or often has no score, needs care.
    """
    blind = [row for row in asked if not _sees(row)]
    known = [row for row in asked if row.get("agreement") is not None]
    apart = [row for row in known if not _above(row["agreement_low"], 0.0)]
    weak = [row for row in known if row not in apart and row["agreement"] < WEAK]
    said = [(*_blindness(row), row["task"]) for row in blind]
    said += [("apart", f"does not follow the truth ({row['agreement']:.2f})", row["task"]) for row in apart]
    said += [("weak", f"follows the truth weakly ({row['agreement']:.2f})", row["task"]) for row in weak]
    for row in known:
        if row["first"] < MOSTLY:
            said.append(("beaten", f"the true map wins only {row['first']:.0%} of its duels", row["task"]))
    for row in asked:
        if _above(row.get("noise"), NOISY):
            said.append(("noisy", f"{row['noise']:.0%} of its variance is chance", row["task"]))
        if row["missing"] > SILENT:
            said.append(
                ("silent", f"{row['missing']:.0%} of samples get no score ({row['flag']})", row["task"])
            )
    complaints = [Complaint(kind, f"{text} on {task}") for kind, text, task in said]
    if len(blind) == len(asked):
        return NOT, complaints
    if known and len(apart) == len(known):
        return NOT, sorted(complaints, key=lambda one: one.kind != "apart")
    return (CARE if complaints else USE), complaints


def _sees(row: Mapping[str, Any]) -> bool:
    """Whether it beats a coin on damaged maps: on all of them, and on those with permuted places alone."""
    return _above(row["power_low"], COIN) and _above(row["permuted_low"], COIN)


def _blindness(row: Mapping[str, Any]) -> tuple[str, str]:
    if row["power"] is None or row["permuted"] is None:
        return "unscored", f"has no scores to compare ({row['flag'] or 'too few samples'})"
    if row["blind_places"] == 1:
        signs = " nor their signs" if row["blind_sign"] == 1 else ""
        return "placeless", f"does not read the places of a map's values{signs}"
    for name, what in (("permuted", "permuted places"), ("power", "damage")):
        if _above(COIN, row[f"{name}_high"]):
            return "prefers", f"prefers maps with {what} (AUROC {row[name]:.2f})"
        if not _above(row[f"{name}_low"], COIN):
            return "chance", f"cannot tell {what} from chance (AUROC {row[name]:.2f})"
    raise AssertionError("a metric that sees damage is not asked why it does not")


def _above(value: float | None, than: float | None) -> bool:
    return value is not None and than is not None and value > than


def _mean(rows: Rows, name: str) -> float | None:
    known = [row[name] for row in rows if row.get(name) is not None]
    return sum(known) / len(known) if known else None
