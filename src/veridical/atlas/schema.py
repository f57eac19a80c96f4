"""What the columns of an atlas mean; written beside the data as a table schema."""

from __future__ import annotations

from typing import Any

FORMAT = 1
NUMBER, TEXT, COUNT = "number", "string", "integer"
METRICS: dict[str, tuple[str, str]] = {
    "metric": (TEXT, "name of the metric"),
    "category": (TEXT, "the family it stands in"),
    "judges": (TEXT, "maps, or methods that it asks for maps of its own"),
    "needs": (TEXT, "what a task must have for it, such as object masks"),
    "modality": (TEXT, "kind of input"),
    "task": (TEXT, "embedded task it was measured on"),
    "samples": (COUNT, "samples of the task"),
    "reason": (TEXT, "why it could not be measured here; empty where it was"),
    "power": (
        NUMBER,
        "AUROC for planted damage: share of pairs of maps of one sample, one more damaged than the "
        "other, that it orders rightly; ties count half, so 0.5 is a coin",
    ),
    "power_low": (NUMBER, "lower end of the 95% interval of power over samples"),
    "power_high": (NUMBER, "upper end of that interval"),
    "permuted": (NUMBER, "power, values of 20% to 100% of the features permuted"),
    "permuted_low": (NUMBER, "lower end of its 95% interval over samples"),
    "permuted_high": (NUMBER, "upper end of that interval"),
    "blended": (NUMBER, "power, map blended half and half with noise of its size"),
    "negated": (NUMBER, "power, map negated"),
    "first": (
        NUMBER,
        "share of duels that the true map wins against maps of explainers and cheats that rank "
        "features otherwise; ties count half. Known answers only",
    ),
    "first_low": (NUMBER, "lower end of its 95% interval over samples"),
    "first_high": (NUMBER, "upper end of that interval"),
    "agreement": (
        NUMBER,
        "Spearman correlation, within a sample, of its scores of all maps with how near each map "
        "is to the truth; mean over samples. Known answers only",
    ),
    "agreement_low": (NUMBER, "lower end of its 95% interval over samples"),
    "agreement_high": (NUMBER, "upper end of that interval"),
    "noise": (
        NUMBER,
        "share of the variance of its scores within a sample that is chance: other seeds, same maps",
    ),
    "flagged": (NUMBER, "share of samples whose true (or reference) map got a flagged or missing score"),
    "flag": (TEXT, "the commonest flag of those scores"),
    "missing": (NUMBER, "share of samples whose true (or reference) map got no score at all"),
    "blind_places": (NUMBER, "share of samples whose score stays when all values of the map are permuted"),
    "blind_sign": (NUMBER, "share of samples whose score stays when the map is negated"),
    "mc": (
        NUMBER,
        "meta-consistency: steady under slight noise, moved by disruptive noise; mean of four shares",
    ),
    "dependence": (NUMBER, "share of scores of real explainers that change when their maps are permuted"),
    "remark": (TEXT, "what a reader must know of these figures"),
    "rows": (NUMBER, "rows asked of the model per sample for a map without ties, forward and backward"),
}
EXPLAINERS: dict[str, tuple[str, str]] = {
    "explainer": (TEXT, "name of the explainer"),
    "modality": (TEXT, "kind of input"),
    "task": (TEXT, "embedded task whose true explanation is known"),
    "nearness": (NUMBER, "how far its maps order features as the truth does (Somers' D); 0 is chance"),
    "nearness_low": (NUMBER, "lower end of its 95% interval over samples"),
    "nearness_high": (NUMBER, "upper end of that interval"),
}  # fmt: skip


def schema() -> dict[str, Any]:
    """The columns of both tables with their types and meanings."""
    tables = {"metrics": METRICS, "explainers": EXPLAINERS}
    return {
        "format": FORMAT,
        "missing": "null: not asked, or no value",
        "tables": {
            name: [{"name": n, "type": kind, "description": said} for n, (kind, said) in columns.items()]
            for name, columns in tables.items()
        },
    }
