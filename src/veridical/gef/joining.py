"""What scores of several shards or seeds carry together: a receipt for all of them, evidence of the whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from veridical.core.key import Key
from veridical.functional import pearson, spearman
from veridical.gef.iso_evidence import evidence
from veridical.gef.iso_metric import IsoSigma
from veridical.values.scores import Scores, joined


def joined_scores(parts: Sequence[Scores]) -> Scores:
    """The scores of parts that follow each other as one, with what GEF says of all of them."""
    found = joined(parts)
    if len(parts) == 1:
        return found
    return replace(found, provenance=joined_provenance(parts, found.details))


def joined_provenance(parts: Sequence[Scores], details: Mapping[str, Tensor]) -> dict[str, Any]:
    """The provenance of the first part, with what GEF said of one part alone said again of all.

    The receipt is that of a part that is not whole, if there is one, with the most worlds dropped by any. The
    evidence of iso-sigma is found again from the joined `details`; without them it is left out.
    """
    out = dict(parts[0].provenance)
    receipts = [own for part in parts if (own := part.provenance.get("receipt"))]
    if receipts:
        least = min(receipts, key=lambda own: bool(own.get("whole", True)))
        out["receipt"] = {**least, "worlds_dropped": max(own["worlds_dropped"] for own in receipts)}
    if out.pop("iso_sigma", None) is not None and "model_distortion" in details:
        metric = out.get("metric", {})
        kind = pearson if metric.get("correlation") == "pearson" else spearman
        model, explanation = (details[f"{what}_distortion"] for what in ("model", "explanation"))
        out["iso_sigma"] = evidence(model, explanation, Key(0) / IsoSigma.name, kind).to_json()
    return out
